"""completions_runs: sample the policy of one run of `evaluate.runs` on its own table."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.completions_stage import completions_of


def main(run: str) -> None:
    """Write completions/NAME/."""
    with completions_of(f"completions_runs@{run}") as stage:
        if stage.params.are_stored:
            stage.store(stage.sampled())
        else:
            stage.store_nothing()


if __name__ == "__main__":
    run_named_stage(main)
