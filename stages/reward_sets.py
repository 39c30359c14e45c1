"""reward_sets: one run of `reward.sets`. Puts two reward models or teachers into one folder for a run."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.copied_models import collect_models


def main(run: str) -> None:
    """Write models/reward/RUN/NAME for each model."""
    collect_models(run)


if __name__ == "__main__":
    run_named_stage(main)
