"""Score 1 for a completion that follows all instructions of its prompt. A program verifies them, as in IFEval."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from posttrain.rewards.instruction_checks import fault, followed
from posttrain.rewards.reward import rule
from posttrain.rollout import Prompt, Rollout
from posttrain.settings.params import Params


class InstructionsOptions(Params):
    """How several instructions are counted."""

    count: Literal["all", "share"] = Field(
        "all",
        description="all: 1 if every instruction is followed, else 0; share: the share of instructions that are "
        "followed",
    )


def _cannot_score(prompt: Prompt, options: InstructionsOptions) -> str | None:  # noqa: ARG001
    return fault(prompt.info.get("instructions"))


@rule(InstructionsOptions, _cannot_score)
def instructions(rollout: Rollout, options: InstructionsOptions) -> float:
    """Tell whether the completion follows the instructions in the prompt's info."""
    followed_each = [followed(one, rollout.text) for one in rollout.prompt.info["instructions"]]
    return float(all(followed_each)) if options.count == "all" else sum(followed_each) / len(followed_each)


REWARDS = {"instructions": instructions}
