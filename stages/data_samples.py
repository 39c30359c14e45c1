"""data_samples: one run of `data.samples`. Makes tables from a policy's own samples."""

from __future__ import annotations

from posttrain.api.scored import sample_and_score
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.data_samples import samples_stage


def main(run: str) -> None:
    """Write the run's tables among data/RUN/{pairs,feedback,chat,prompts}.parquet, and metrics/data/RUN.json."""
    stage = samples_stage(run)
    policy = stage.policy()
    scored = sample_and_score(
        policy, None, stage.prompts(policy), stage.params, reward_model=stage.reward_model, sampler=stage.sampler,
        name=f"{stage.section}: sampling", where=stage.section,
    )  # fmt: skip
    stage.save(scored)


if __name__ == "__main__":
    run_named_stage(main)
