"""What draws completions: requests, settings and a seed in; token ids with their log-probs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from posttrain.params import Params

Capability = Literal["greedy", "mixture", "top_p", "top_k", "stop_strings"]
Finish = Literal["stop", "length"]


class SamplingParams(Params):
    """How completions are drawn."""

    max_tokens: int = Field(32, ge=1, description="longest completion, stop token included")
    temperature: float = Field(1.0, ge=1e-4, le=10, description="logits are divided by it; training does the same")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="draw from the fewest likeliest tokens that hold this share of the mass",
    )
    top_k: int | None = Field(None, ge=1, description="draw from this many likeliest tokens; null: from all")
    stop: list[str] = Field(
        default_factory=list,
        description="a completion also ends when its text contains one of these strings, which stays in it",
    )
    rows: int = Field(1024, ge=1, description="completions decoded at a time (memory, not results)")

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("every text contains the empty string, so each completion would be empty. Remove it")
        return stop


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue. The seed and the name alone decide the random numbers."""

    ids: Sequence[int]
    name: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What a request was continued with."""

    ids: list[int]
    logps: list[float]
    """Of each token under the policy, at the temperature that it was drawn with."""
    finish: Finish


@dataclass(frozen=True)
class Mixture:
    """A second model to sample with: pi^(1 - share) other^share, made to sum to 1 (Munos 2023)."""

    other: Any
    share: float


class Sampler(Protocol):
    """Draws completions of a policy.

    Example: `LocalSampler(model, stops, device).generate([Request([5, 6], "p1:0")], SamplingParams(), seed=0)`
    """

    can: frozenset[Capability]
    """What it can do beyond drawing from all tokens of one policy."""
    version: str
    """The weights that it draws with, e.g. `online@grpo step 12`."""

    @property
    def context(self) -> int | None:
        """The most tokens that a request and its completion can have; None: not known."""

    def sync(self, model: Any, version: str) -> None:
        """Draw with these weights from now on."""

    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        seed: int,
        *,
        greedy: bool = False,
        mixture: Mixture | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """A completion of each request; `advance` is told how many more are finished."""
        ...
