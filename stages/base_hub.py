"""base_hub: one run of `base.hub`. Checks and copies a model from the Hub at its commit."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.copied_models import copy_from_hub


def main(run: str) -> None:
    """Write models/base/RUN and metrics/base/RUN.json."""
    copy_from_hub(run)


if __name__ == "__main__":
    run_named_stage(main)
