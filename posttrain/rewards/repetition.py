"""A penalty on repeated n-grams."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from posttrain.rewards.length import NO_TOKENS, completion_ids
from posttrain.rewards.reward import rule
from posttrain.rewards.words import pieces
from posttrain.rollout import Rollout, Score
from posttrain.settings.params import Params


class RepetitionOptions(Params):
    """The length of n-grams, and the share of repetition without penalty."""

    n: int = Field(4, ge=1, le=100, description="length of an n-gram")
    limit: float = Field(0.0, ge=0, lt=1, description="share of repeated n-grams that is not penalised")
    unit: Literal["words", "tokens"] = Field("words", description="n-grams of words and signs, or of tokens")


@rule(RepetitionOptions, shaping=True)
def repetition(rollout: Rollout, options: RepetitionOptions) -> Score:
    """Return -(s - limit) / (1 - limit) above the limit, else 0, with s = 1 - distinct n-grams / n-grams."""
    units = pieces(rollout.text) if options.unit == "words" else list(completion_ids(rollout))
    if options.unit == "tokens" and not units:
        return NO_TOKENS
    grams = list(zip(*(units[start:] for start in range(options.n)), strict=False))
    share = 1 - len(set(grams)) / len(grams) if grams else 0.0
    return Score(min(0.0, (options.limit - share) / (1 - options.limit)))


REWARDS = {"repetition": repetition}
