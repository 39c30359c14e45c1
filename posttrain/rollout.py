"""The records of the way from a prompt to a gradient: tokens with a mask, a prompt, a rollout and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Message = Mapping[str, str]
Ids = Sequence[int]
Status = Literal["ok", "unparseable", "timeout", "error", "infrastructure"]
FAILED: frozenset[Status] = frozenset({"timeout", "error", "infrastructure"})
"""Nothing is known about the completion: such a score never counts as 0."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of a conversation: a prompt, which is never trained and may be shared, and what follows it.

    `mask` has a value for each token of `rest`: whether it is trained. Turns of a user or of a tool between those of
    the policy are not. None: every token of `rest` is trained.
    """

    prompt: Ids
    rest: Ids
    mask: Sequence[bool] | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.rest)

    @property
    def trained(self) -> Sequence[int]:
        """The places in `rest` that are trained: the first token of all has nothing before it that predicts it."""
        first = 0 if self.prompt else 1
        if self.mask is None:
            return range(first, len(self.rest))
        return [place for place in range(first, len(self.rest)) if self.mask[place]]


def token_rows(prompts: Sequence[Ids], completions: Sequence[Ids]) -> list[TokenRow]:
    """Rows of one prompt and one completion each."""
    return [TokenRow(*one) for one in zip(prompts, completions, strict=True)]


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward gives a rollout."""

    value: float
    status: Status = "ok"
    """unparseable: the completion has nothing that the reward can judge, which counts with its value."""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"the status {self.status!r:.40} is unknown; use one of {', '.join(get_args(Status))}")


@dataclass(frozen=True)
class Prompt:
    """What a policy is asked: a row of a table of prompts."""

    id: str
    messages: Sequence[Message]
    ids: Sequence[int]
    answer: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Anything that a reward or a task wants to know of this prompt."""
    task: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Rollout:
    """One episode: tokens, a mask of those that the policy drew, their log-probs, and what the rewards say."""

    prompt: Prompt
    sample: int
    """Its number among the samples of its prompt."""
    row: TokenRow
    logps: Sequence[float]
    """Of the tokens that the mask marks, as the sampler recorded them."""
    text: str
    """The last thing that the policy wrote, without its stop token."""
    finish: Literal["stop", "length"]
    """How the last completion ended."""
    turns: Sequence[Message] = ()
    """Everything after the prompt's messages."""
    version: str = ""
    """The weights that drew it."""
    scores: Mapping[str, Score] = field(default_factory=dict)

    @property
    def truncated(self) -> bool:
        """Whether it ended without a stop token."""
        return self.finish == "length"
