"""base_folders: one run of `base.folders`. Checks and copies a model from your own folder."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.copied_models import copy_folder


def main(run: str) -> None:
    """Write models/base/RUN and metrics/base/RUN.json."""
    copy_folder(run)


if __name__ == "__main__":
    run_named_stage(main)
