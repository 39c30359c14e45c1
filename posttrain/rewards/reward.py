"""A reward (a function from rollouts to scores, with options), and a reward with its weight."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, SerializeAsAny, model_validator

from posttrain.errors import PosttrainError, excerpt, shortened
from posttrain.measure.masking import masked
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params
from posttrain.settings.user_code import place_in_own_code

if TYPE_CHECKING:
    from posttrain.models.device import Runtime
    from posttrain.text.chat import ChatText


class NoOptions(Params):
    """A reward without options."""


O = TypeVar("O", bound=Params)  # noqa: E741
ScoreFn = Callable[[Sequence[Rollout]], Sequence[Score | float]]
"""A function that returns a score for each rollout, in the same order."""
Each = Callable[[Rollout, Any], Score | float | Awaitable[Score | float]]
"""A function that returns the score of one rollout."""


@dataclass(frozen=True)
class Context:
    """Context that a reward may need in addition to its options."""

    device: Runtime | None
    """The device; None in a worker process."""
    where: str
    """The section of params.yaml that contains the reward."""
    reward_model: Path | None = None
    text: ChatText | None = None
    """The policy's tokenizer and template."""
    max_tokens: int | None = None
    """Maximum number of tokens of a sampled completion."""
    name: str = ""
    """The reward's name in params.yaml."""
    sign: Literal[1, -1] = 1
    """-1 if its weight is negative, so that its highest score is the worst."""

    @property
    def place(self) -> str:
        """The reward's key path in params.yaml."""
        return f"{self.where}.reward.{self.name}"


@dataclass(frozen=True)
class Examples:
    """Completions of one prompt that must score high, and completions that must score low."""

    right: Sequence[str] = ()
    wrong: Sequence[str] = ()


@dataclass(frozen=True)
class Reward(Generic[O]):
    """A reward that params.yaml can use by name.

    Example: `short = Reward(lambda options, context: lambda rollouts: [-len(one.text) / 100 for one in rollouts])`
    """

    score_fn: Callable[[O, Context], ScoreFn]
    options: type[O] = field(default=NoOptions)  # type: ignore[assignment]
    cannot_score: Callable[[Prompt, O], str | None] = lambda prompt, options: None  # noqa: ARG005
    """Return the reason why it cannot judge the answers to a prompt; None if it can."""
    shaping: bool = False
    """True if it judges form, length or style, not the outcome. Such a reward does not decide which prompts can be
    judged, which groups are sampled again, or what a filter keeps."""
    examples: Callable[[Prompt, O], Examples] = lambda prompt, options: Examples()  # noqa: ARG005
    """Completions of a prompt with known scores. They are scored before the first step of a run."""
    isolated: bool | Callable[[O], bool] = False
    """True if it runs in worker processes with a time limit, for code that may hang, crash or come from others; or a
    function of its options that returns this."""
    each: Each | None = None
    """The function of one rollout that it is made from. Each call has its own time limit and fails alone."""
    by_step: Callable[[O], bool] = lambda options: False  # noqa: ARG005
    """True if its scores are sums over steps (Score.steps). Advantages per token use the values at the steps' ends."""

    compares: Callable[[O], bool] = lambda options: False  # noqa: ARG005
    """True if a score depends on the other rollouts that are scored with it."""

    most_if_cut: Callable[[O], float | None] = lambda options: None  # noqa: ARG005
    """The highest score of a completion that was cut off, which then gets no more than any sample of its prompt; None:
    it is scored as any other."""

    def in_workers(self, options: O) -> bool:
        """Tell whether the reward runs in worker processes with these options."""
        return self.isolated(options) if callable(self.isolated) else self.isolated


def rule(
    options: type[O] = NoOptions,  # type: ignore[assignment]
    cannot_score: Callable[[Prompt, O], str | None] = lambda prompt, options: None,  # noqa: ARG005
    *,
    shaping: bool = False,
    examples: Callable[[Prompt, O], Examples] = lambda prompt, options: Examples(),  # noqa: ARG005
    isolated: bool | Callable[[O], bool] = False,
    by_step: bool = False,
) -> Callable[[Callable[[Rollout, O], Any]], Reward[O]]:
    """Make a reward from a function of one rollout and the options. An `async` function runs in worker processes."""

    def made(function: Callable[[Rollout, O], Any]) -> Reward[O]:
        def score_fn(chosen: O, _: Context) -> ScoreFn:
            return lambda rollouts: [score_one(function, rollout, chosen) for rollout in rollouts]

        apart = isolated or inspect.iscoroutinefunction(function)
        return Reward(score_fn, options, cannot_score, shaping, examples, apart, function, lambda _: by_step)

    return made


def score_one(each: Each, rollout: Rollout, options: Any) -> Score:
    """Return the score of one rollout; status `error` if the function raises."""
    return guarded(lambda: [each(rollout, options)], 1)[0]


def guarded(call: Callable[[], Sequence[Any]], count: int) -> list[Score]:
    """Return the scores that a call returns; if it raises, `count` scores with status `error`."""
    try:
        return [as_score(returned) for returned in call()]
    except PosttrainError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a reward raises: none of its scores is known
        return [raised(error)] * count


def as_score(returned: Any) -> Score:
    """Return a reward's result as a score of plain numbers; status `error` if it is not finite."""
    if not isinstance(returned, Score) and (isinstance(returned, str) or not hasattr(returned, "__float__")):
        return Score(0.0, "error", f"it returned {excerpt(returned, 40)}. Return a number or a Score")
    score = returned if isinstance(returned, Score) else Score(returned)
    steps = tuple((int(token), float(value)) for token, value in score.steps)
    given: tuple[Any, Any] = score.reason, score.answer  # of a user's code
    reason, answer = ("" if text is None else str(text) for text in given)
    reason = masked(reason) if reason else ""
    score = replace(score, value=float(score.value), reason=reason, answer=answer, steps=steps)
    if odd := [value for value in (score.value, *(value for _, value in steps)) if not math.isfinite(value)]:
        return Score(0.0, "error", f"{odd[0]} is not finite")
    return score


def raised(error: Exception) -> Score:
    """Return the score of a rollout after a reward raised."""
    text = shortened(masked(str(error)), 300)
    return Score(0.0, "error", f"it raised {type(error).__name__}: {text}{place_in_own_code(error)}")


class WeightedReward(Params):
    """A reward in a weighted sum."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    type: str = Field("", description="the reward's type; default: the reward of this name")
    reward: Reward[Any] = Field(exclude=True, repr=False, description="options of the judge")
    weight: float = Field(1.0, description="the score is multiplied by this in the sum; 0: measured, but not counted")
    gate: bool = Field(False, description="true: the score is not added, but a score <= 0 limits the sum to at most 0")
    normalise: bool = Field(False, description="true: use z-scores among the samples of a round")
    shaping: bool | None = Field(
        None,
        description="whether it judges form and not the outcome, so that filters ignore it; null: the reward's default",
    )
    timeout: float = Field(10.0, gt=0, description="timeout in seconds of one call of a reward in worker processes")
    workers: int = Field(2, ge=1, le=64, description="number of worker processes")
    concurrency: int = Field(16, ge=1, description="parallel calls of an `async` function per worker process")
    env: list[str] = Field(
        [],
        description="names of secret environment variables to pass to worker processes; no other secrets are passed on",
    )
    options: SerializeAsAny[Params] = Field(default_factory=NoOptions, description="the reward's own options")

    @model_validator(mode="after")
    def _gates_are_not_added(self) -> WeightedReward:
        if self.gate and (self.normalise or "weight" in self.model_fields_set):
            raise ValueError("a gate is not added to the sum, so it has no weight and no normalise. Remove them")
        return self

    @property
    def counted(self) -> float:
        """The weight of its score in the sum."""
        return 0.0 if self.gate else self.weight

    @property
    def outcome(self) -> bool:
        """True if the reward belongs to the outcome."""
        return bool(self.counted) and not self.judges_form

    @property
    def judges_form(self) -> bool:
        """True if the reward judges form, length or style."""
        return self.reward.shaping if self.shaping is None else self.shaping

    def options_for(self, task_options: Mapping[str, Mapping[str, Any]]) -> Params:
        """Return the options. A task's options for this reward apply if the user sets none."""
        defaults = task_options.get(self.type, {})
        chosen = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        return type(self.options)(**{**defaults, **chosen})


WORKER_KEYS = frozenset({"timeout", "workers", "concurrency", "env"})
TERM_KEYS = frozenset({"type", "weight", "gate", "normalise", "shaping"})
"""The keys that every reward in params.yaml has in addition to its own options."""


def weights(terms: Mapping[str, WeightedReward]) -> dict[str, float]:
    """Return the names of the terms that are added, and their weights."""
    return {name: term.counted for name, term in terms.items() if term.counted}
