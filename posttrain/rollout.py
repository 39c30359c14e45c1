"""The data types from prompt to gradient: a row of tokens with a mask, a prompt, a rollout and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

Message = Mapping[str, str]
Ids = Sequence[int]
Status = Literal["ok", "unparseable", "timeout", "error", "infrastructure"]
Finish = Literal["stop", "length", "turns", "timeout", "error"]
"""How an episode ended: with a stop token or string, at the token or turn limit, or because its task failed."""
SAME = 1e-6
"""Scores that differ by less are the same: tables store them in other types."""
FAILED: frozenset[Status] = frozenset({"timeout", "error", "infrastructure"})
"""The completion could not be scored. Such a score never counts as 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The tokens that top_k and top_p kept at each sampled token: all ids, and the number of ids per token."""

    ids: Tensor
    """int32 ids, ordered by sampled token."""
    counts: Tensor
    """int32 counts; 0: no token was excluded."""

    def part(self, tokens: slice) -> Kept:
        """Return the part for a range of adjacent tokens."""
        start, counts = int(self.counts[: tokens.start].sum()), self.counts[tokens]
        return Kept(self.ids[start : start + int(counts.sum())], counts)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of a conversation: `prompt`, which is never trained and may be shared, and `rest`.

    `mask` is true at the trained tokens of `rest`. Turns of a user or a tool between the policy's turns are not
    trained. None: every token of `rest` is trained.

    Example: `TokenRow([5, 6], [7, 8, 9], [True, False, True])`
    """

    prompt: Ids
    rest: Ids
    mask: Sequence[bool] | None = None
    kept: Kept | None = None
    """The tokens that each trained token was drawn from, if log-probs are over these tokens only; None: all tokens."""
    experts: Tensor | None = None
    """The experts [tokens, layers, k] that a mixture must choose (`router.replay`). -1: the model chooses; None:
    always."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.rest)

    @property
    def trained(self) -> Sequence[int]:
        """The indices in `rest` that are trained. The first token of a row without a prompt cannot be predicted."""
        first = 0 if self.prompt else 1
        if self.mask is None:
            return range(first, len(self.rest))
        return [place for place in range(first, len(self.rest)) if self.mask[place]]

    @property
    def turn_ends(self) -> list[int]:
        """For each trained turn, the number of trained tokens up to its end."""
        places = self.trained
        last = len(places) - 1
        return [index + 1 for index, place in enumerate(places) if index == last or places[index + 1] != place + 1]


def token_rows(prompts: Sequence[Ids], completions: Sequence[Ids]) -> list[TokenRow]:
    """Return rows of one prompt and one completion each."""
    return [TokenRow(*pair) for pair in zip(prompts, completions, strict=True)]


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one reward for a rollout."""

    value: float
    status: Status = "ok"
    """`unparseable`: the reward found no answer in the completion, but its value counts."""
    reason: str = ""
    answer: str = ""
    """The answer that the reward found in the completion. Majority votes compare these."""
    steps: Sequence[Sequence[float]] = ()
    """For a score that is a sum over steps: for each step, the number of sampled tokens up to its end, and its
    value."""

    @property
    def known(self) -> float | None:
        """The value; None if the reward failed. A failure never counts as 0."""
        return None if self.status in FAILED else self.value

    @property
    def plain(self) -> tuple[float, str, str, str, list[list[float]]]:
        """Return the values as plain JSON types. `Score(*plain)` restores the score."""
        return self.value, self.status, self.reason, self.answer, [list(step) for step in self.steps]

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"the status {self.status!r:.40} is unknown; use one of {', '.join(get_args(Status))}")
        for name in ("reason", "answer"):  # half a character, which a reply in JSON may hold, fits in no table
            text = getattr(self, name)
            if isinstance(text, str) and not text.isascii():
                object.__setattr__(self, name, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def stored_value(score: Mapping[str, Any]) -> float | None:
    """Return the value of a score in a table; None if the reward failed (older tables store 0.0)."""
    return None if score["status"] in FAILED else score["value"]


@dataclass(frozen=True)
class Prompt:
    """A row of a table of prompts."""

    id: str
    messages: Sequence[Message]
    ids: Sequence[int]
    answer: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    """More data of this prompt for rewards and tasks."""
    task: str = ""
    problem: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables for the chat template, e.g. {"enable_thinking": False}."""


@dataclass(frozen=True)
class Rollout:
    """One episode: its tokens, a mask of the tokens that the policy sampled, their log-probs, and its scores."""

    prompt: Prompt
    sample: int
    """Its index among the samples of its prompt."""
    row: TokenRow
    logps: Sequence[float]
    """Log-probs of the masked tokens, as the sampler recorded them."""
    text: str
    """The policy's last turn, without its stop token."""
    finish: Finish
    """How the episode ended."""
    turns: Sequence[Message] = ()
    """Everything after the prompt's messages."""
    version: str = ""
    """The version of the weights that sampled it."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    turn_rewards: Sequence[float] = ()
    """Rewards from the task's steps, one per completion; empty for a single-turn task."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Data that the task's steps reported."""
    reason: str = ""
    """Why the episode failed."""

    @property
    def failed(self) -> Score | None:
        """The score of every reward if the task failed; None if the task did not fail."""
        return Score(0.0, self.finish, self.reason) if self.finish in ("timeout", "error") else None

    @property
    def transcript(self) -> str:
        """The completion; for an episode of several turns, all turns with their roles."""
        if len(self.turns) < 2:
            return self.text
        return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """True if the last completion ended without a stop token."""
        return self.finish == "length"
