"""Your own rewards. params.yaml refers to them as `rewards:NAME`; docs/own-rewards.md of posttrain is a guide."""

from __future__ import annotations

from pydantic import Field

from posttrain.rewards import Params, Rollout, rule


class Words(Params):
    """The options of `brief` in params.yaml."""

    most: int = Field(30, ge=1, description="number of words at which the score becomes 0")


@rule(Words, shaping=True)
def brief(rollout: Rollout, options: Words) -> float:
    """Return 1 for no words, falling to 0."""
    return max(0.0, 1 - len(rollout.text.split()) / options.most)
