"""completions: sample one policy of `evaluate.policies` on held-out prompts. NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.completions_stage import completions_of


def main(label: str) -> None:
    """Write completions/NAME/."""
    with completions_of(f"completions@{label}") as stage:
        if stage.params.are_stored:
            stage.store(stage.sampled())
        else:
            stage.store_nothing()


if __name__ == "__main__":
    run_named_stage(main)
