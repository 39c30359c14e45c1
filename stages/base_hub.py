"""base_hub: one run of `base.hub`, a model of the Hub at its commit, checked and copied."""

from __future__ import annotations

from posttrain.files import write_json
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.base import HubRun
from posttrain.pipeline.workspace import metrics_path, model_path


def main(run: str) -> None:
    """Writes models/base/RUN and metrics/base/RUN.json."""
    name = f"base@{run}"
    params = load(HubRun, f"base.hub.{run}")
    fetch_model(
        params.name, params.revision, model_path(name), params.save_dtype, params.chat_template, params.template
    )
    write_json(metrics_path(name), {"source": params.name, "revision": params.revision})
    print(f"base_hub@{run}: {params.name} checked and saved in {model_path(name)}")


if __name__ == "__main__":
    run_named_stage(main)
