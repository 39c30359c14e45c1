"""regrade: one run of `regrade.runs`. Scores the stored rollouts of a finished run again, with other rewards."""

from __future__ import annotations

from posttrain.api.regraded import regrade
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.regrade import regrade_stage


def main(run: str) -> None:
    """Write metrics/regrade/RUN.parquet, metrics/regrade/RUN.json and plots/regrade/RUN.csv."""
    stage = regrade_stage(run)
    groups = regrade(
        stage.rounds(), config=stage.params, reward_model=stage.reward_model, max_tokens=stage.max_tokens,
        where=stage.section,
    )  # fmt: skip
    stage.save(groups)


if __name__ == "__main__":
    run_named_stage(main)
