"""completions: sample one policy of `evaluate.policies` on held-out prompts. NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.api.completions import sample_completions
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.completions_stage import completions_of


def main(label: str) -> None:
    """Write completions/NAME/."""
    with completions_of(f"completions@{label}") as stage:
        if not stage.params.are_stored:
            stage.store_nothing()
            return
        policy = stage.policy()
        found = sample_completions(
            policy, None, stage.prompts(policy.text), stage.params, reference=stage.reference, sampler=stage.sampler,
            name=stage.name, where=stage.section,
        )  # fmt: skip
        stage.store(found)


if __name__ == "__main__":
    run_named_stage(main)
