"""base_hub: one run of `base.hub`, a model of the Hub at its commit, checked and copied."""

from __future__ import annotations

from pydantic import Field

from posttrain.files import write_json
from posttrain.models.files.import_model import fetch_model
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.files.tokenizer import TemplateParams
from posttrain.params.params_file import load
from posttrain.processes.stage import run_named_stage
from posttrain.workspace import metrics_path, model_path


class HubRun(TemplateParams):
    """One run of `base.hub`: a model of the Hugging Face Hub."""

    name: str = Field(min_length=1, description="the Hub name, e.g. Qwen/Qwen3-0.6B")
    revision: str = Field(
        pattern="^[0-9a-f]{40}$", description="the commit's full hash of 40 digits: a tag or a branch can move"
    )
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: as the files have them")


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
