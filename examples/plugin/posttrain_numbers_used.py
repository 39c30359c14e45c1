"""The reward `numbers_used`: the share of the prompt's numbers that a completion uses."""

from __future__ import annotations

import re

from pydantic import Field

from posttrain.rewards import Examples, Params, Prompt, Rollout, Score, rule

NUMBER = re.compile(r"\d+")


class NumbersUsed(Params):
    """The options of the reward, as params.yaml has them."""

    most: float = Field(1.0, gt=0, le=1, description="share of the numbers that already scores 1")


def numbers(text: str) -> set[int]:
    """Return the numbers in a text."""
    return {int(digits) for digits in NUMBER.findall(text)}


def asked(prompt: Prompt) -> set[int]:
    """Return the numbers in the turns of a prompt."""
    return numbers(" ".join(str(turn["content"]) for turn in prompt.messages))


def has_no_numbers(prompt: Prompt, _: NumbersUsed) -> str | None:
    """Return why a prompt cannot be judged: posttrain leaves it out and counts it."""
    return None if asked(prompt) else "it has no numbers"


def known(prompt: Prompt, _: NumbersUsed) -> Examples:
    """Return completions whose scores are known: posttrain scores them before the first step."""
    return Examples(right=[" ".join(map(str, sorted(asked(prompt))))], wrong=["", "I do not know"])


@rule(NumbersUsed, has_no_numbers, examples=known)
def numbers_used(rollout: Rollout, options: NumbersUsed) -> Score | float:
    """Score one completion between 0 and 1."""
    wanted = asked(rollout.prompt)
    if not wanted:
        return Score(0.0, "error", "the prompt has no numbers")
    share = len(wanted & numbers(rollout.text)) / len(wanted)
    return min(share / options.most, 1.0)
