"""The surrogates of PPO and its relatives: the score function, the ratio, and its clips."""

from __future__ import annotations

from pydantic import Field, field_validator

from posttrain.algorithms.surrogates.base import Options, Surrogate
from posttrain.formulas.clip import beyond, cispo, importance, outside, ppo_clip, reinforce
from posttrain.formulas.ratio import sequence_log_ratio


class UpperEdge(Options):
    """An upper edge of the ratio."""

    high: float = Field(0.2, description="upper edge of the ratio: 1 + high")

    @field_validator("high")
    @classmethod
    def _counted_from_1(cls, high: float) -> float:
        if high <= 0:
            raise ValueError(
                f"high = {high:g} puts the edge 1 + high at {1 + high:g}, so samples of the policy itself (ratio 1) "
                "would be cut. Use a number above 0: it is counted from 1"
            )
        return high


class ClipOptions(UpperEdge):
    """Both edges: with one alone a ratio could fall freely where A < 0."""

    low: float = Field(0.2, gt=0, le=1, description="lower edge of the ratio: 1 - low")


class CispoOptions(UpperEdge):
    """The edges of a weight."""

    low: float | None = Field(None, gt=0, le=1, description="lower edge of the weight: 1 - low; null leaves it open")
    high: float = Field(4.0, description="upper edge of the weight: 1 + high")


class GspoOptions(ClipOptions):
    """Edges of the ratio of a whole sequence, which hardly moves."""

    low: float = Field(3e-4, gt=0, le=1, description="lower edge of the sequence's ratio: 1 - low")
    high: float = Field(4e-4, description="upper edge of the sequence's ratio: 1 + high")


SURROGATES = {
    "ppo_clip": Surrogate(
        ClipOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(r A, clip(r, 1 - low, 1 + high) A)",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
    ),
    "importance": Surrogate(Options, lambda tokens, _: importance(tokens.ratio, tokens.advantage), "r A"),
    "cispo": Surrogate(
        CispoOptions,
        lambda tokens, o: cispo(tokens.ratio, tokens.logp, tokens.advantage, o.low, o.high),
        "sg(clip(r, 1 - low, 1 + high)) A logp",
        clipped=lambda tokens, o: beyond(tokens.ratio, o.low, o.high),
    ),
    "reinforce": Surrogate(
        Options, lambda tokens, _: reinforce(tokens.logp, tokens.advantage), "A logp", has_ratio=False
    ),
    "gspo": Surrogate(
        GspoOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r)",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
        log_ratio=sequence_log_ratio,
        needs_sequence=True,
        per_sequence=True,
    ),
}
