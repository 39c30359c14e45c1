"""base_hub: one run of `base.hub`, a model of the Hub at its commit, checked and copied."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.copied_models import copy_from_hub


def main(run: str) -> None:
    """Writes models/base/RUN and metrics/base/RUN.json."""
    copy_from_hub(run)


if __name__ == "__main__":
    run_named_stage(main)
