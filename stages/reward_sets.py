"""reward_sets: one run of `reward.sets`, two models side by side: reward models of one run, or teachers."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.copied_models import collect_models


def main(run: str) -> None:
    """Writes models/reward/RUN/NAME for each model."""
    collect_models(run)


if __name__ == "__main__":
    run_named_stage(main)
