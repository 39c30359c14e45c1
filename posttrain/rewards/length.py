"""Length: towards a target, below a limit, or DAPO's soft penalty for completions that are almost too long."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from posttrain.rewards.reward import Context, Reward, ScoreFn, rule
from posttrain.rollout import Ids, Rollout, Score
from posttrain.settings.params import Params


def completion_ids(rollout: Rollout) -> Ids:
    """Return the tokens of the last completion, including its stop token."""
    ids, mask = rollout.row.rest, rollout.row.mask
    if mask is None:
        return ids
    before = next((place for place in range(len(mask), 0, -1) if not mask[place - 1]), 0)
    return ids[before:]


def soft_overlong(length: int, longest: int, fraction: float) -> float:
    """Return 0 up to longest - cache, then linear to -1 at longest; cache = fraction * longest (DAPO, Yu 2025)."""
    return max(-1.0, min(0.0, (longest - length) / (fraction * longest) - 1))


class LengthOptions(Params):
    """The target length, and the shape of the score around it."""

    target: int | None = Field(None, ge=1, description="length with score 1; set either target or limit")
    limit: int | None = Field(None, ge=1, description="length at which the score becomes 0; set either limit or target")
    width: int | None = Field(
        None, ge=1, description="with target: distance from it at which the score is 0; null: the target"
    )
    shape: Literal["linear", "cosine", "step"] = Field(
        "linear", description="shape of the fall from 1 to 0; step: 1 up to the end, 0 beyond"
    )
    unit: Literal["tokens", "words"] = Field("tokens", description="unit of the length of the last completion")

    @model_validator(mode="after")
    def _one_aim(self) -> LengthOptions:
        if (self.target is None) == (self.limit is None):
            raise ValueError("give either target or limit")
        if self.width is not None and self.target is None:
            raise ValueError("width only works with target. Remove width, or give target instead of limit")
        return self

    @property
    def scale(self) -> tuple[int, int]:
        """The length with score 1, and the distance from it at which the score is 0."""
        return (0, self.limit) if self.limit is not None else (self.target or 0, self.width or self.target or 1)


@rule(LengthOptions, shaping=True)
def of_length(rollout: Rollout, options: LengthOptions) -> Score:
    """Return f(|length - target| / width) or f(length / limit), f(0) = 1, falling to 0 (Yeo 2025, Aggarwal 2025)."""
    length, (aim, width) = _length(rollout, options.unit), options.scale
    if length is None:
        return NO_TOKENS
    share = abs(length - aim) / width
    if share > 1:
        return Score(0.0)
    return Score({"linear": 1 - share, "cosine": (1 + math.cos(math.pi * share)) / 2, "step": 1.0}[options.shape])


def _length(rollout: Rollout, unit: Literal["tokens", "words"]) -> int | None:
    if unit == "tokens":
        return len(completion_ids(rollout)) or None
    from posttrain.rewards.words import words  # few runs need the package behind it

    return len(words(rollout.text))


class OverlongOptions(Params):
    """The length at which the penalty begins."""

    fraction: float = Field(
        0.2, gt=0, lt=1, description="fraction of sampling.max_tokens, at its end, that is penalised"
    )


def _overlong(options: OverlongOptions, context: Context) -> ScoreFn:
    longest = context.max_tokens
    if longest is None:
        raise ValueError("sampling.max_tokens is not known here; run `reward test` with --run")
    return lambda rollouts: [
        Score(soft_overlong(len(ids), longest, options.fraction)) if (ids := completion_ids(rollout)) else NO_TOKENS
        for rollout in rollouts
    ]


NO_TOKENS = Score(0.0, "error", "its tokens are not known; run `reward test` with --run, or on a table of rollouts")
REWARDS = {"length": of_length, "overlong": Reward(_overlong, OverlongOptions, shaping=True)}
