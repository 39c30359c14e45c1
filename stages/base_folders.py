"""base_folders: one run of `base.folders`, a model from a folder of yours, checked and copied."""

from __future__ import annotations

from posttrain.errors import ParamsError
from posttrain.files import write_json
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.base import FolderRun
from posttrain.pipeline.workspace import PARAMS_FILE, any_outside, metrics_path, model_path


def main(run: str) -> None:
    """Writes models/base/RUN and metrics/base/RUN.json."""
    name, section = f"base@{run}", f"base.folders.{run}"
    params = load(FolderRun, section)
    if any_outside(params.path) and not params.outside_workspace:
        where = f"{section}.path = {params.path} ({PARAMS_FILE})"
        fix = f"Copy the model into the workspace, or set {section}.outside_workspace: true"
        raise ParamsError(what="the path is outside the workspace", where=where, fix=fix)
    fetch_model(params.path, None, model_path(name), params.save_dtype, params.chat_template, params.template)
    write_json(metrics_path(name), {"source": params.path})
    print(f"base_folders@{run}: {params.path} checked and saved in {model_path(name)}")


if __name__ == "__main__":
    run_named_stage(main)
