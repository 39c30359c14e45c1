"""What a reward is: a function from rollouts to scores with options of its own; and rewards by name as one number."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, SerializeAsAny

from posttrain.errors import DataError, RewardError
from posttrain.measure.phases import phase
from posttrain.params import Params
from posttrain.rollout import FAILED, Prompt, Rollout, Score
from posttrain.tasks.task import load_task
from posttrain.user_code import place_in_workspace

if TYPE_CHECKING:
    from posttrain.models.device import Runtime
    from posttrain.text.chat import ChatText


class NoOptions(Params):
    """A reward without options."""


O = TypeVar("O", bound=Params)  # noqa: E741
Judge = Callable[[Sequence[Rollout]], Sequence[Score | float]]
"""A score for each rollout, in their order."""


@dataclass(frozen=True)
class Context:
    """What a reward may need in addition to its options."""

    device: Runtime
    where: str
    """The section of params.yaml that names the reward."""
    reward_model: Path | None = None
    text: ChatText | None = None
    """The policy's tokenizer and template."""
    max_tokens: int | None = None
    """The longest completion that is sampled."""


@dataclass(frozen=True)
class Examples:
    """Completions of one prompt that must score high, and that must score low."""

    right: Sequence[str] = ()
    wrong: Sequence[str] = ()


@dataclass(frozen=True)
class Reward(Generic[O]):
    """A reward by name in params.yaml.

    Example: `short = Reward(lambda options, context: lambda rollouts: [-len(one.text) / 100 for one in rollouts])`
    """

    judge: Callable[[O, Context], Judge]
    options: type[O] = field(default=NoOptions)  # type: ignore[assignment]
    unjudged: Callable[[Prompt, O], str | None] = lambda prompt, options: None  # noqa: ARG005
    """Why it cannot judge the answers to a prompt; None: it can."""
    shaping: bool = False
    """Whether it judges form, length or style, not the outcome. Such a reward does not decide which prompts can be
    judged, which groups are sampled again, or what a filter keeps."""
    examples: Callable[[Prompt, O], Examples] = lambda prompt, options: Examples()  # noqa: ARG005
    """Completions of a prompt whose scores are known; they are scored before the first step of a run."""
    isolated: bool = False
    """Whether it runs in worker processes with a time limit: code that may hang, crash or come from others."""


def rule(
    options: type[O] = NoOptions,  # type: ignore[assignment]
    unjudged: Callable[[Prompt, O], str | None] = lambda prompt, options: None,  # noqa: ARG005
    *,
    shaping: bool = False,
    examples: Callable[[Prompt, O], Examples] = lambda prompt, options: Examples(),  # noqa: ARG005
    isolated: bool = False,
) -> Callable[[Callable[[Rollout, O], Score | float]], Reward[O]]:
    """Make a reward of a function of one rollout and the options."""

    def made(function: Callable[[Rollout, O], Score | float]) -> Reward[O]:
        def judge(chosen: O, _: Context) -> Judge:
            return lambda rollouts: [function(one, chosen) for one in rollouts]

        return Reward(judge, options, unjudged, shaping, examples, isolated)

    return made


class Term(Params):
    """A reward in a sum."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    reward: Reward[Any] = Field(exclude=True, repr=False, description="what judges")
    weight: float = Field(1.0, description="what its score is multiplied by; 0: measured, and not counted")
    options: SerializeAsAny[Params] = Field(default_factory=NoOptions, description="the reward's own options")

    def options_for(self, defaults: Mapping[str, Any]) -> Params:
        """The options, with a task's defaults where the user has set none."""
        own = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        return type(self.options)(**{**defaults, **own})


def weights(terms: Mapping[str, Term]) -> dict[str, float]:
    """The terms that count, and by how much."""
    return {name: term.weight for name, term in terms.items() if term.weight}


class RewardSum:
    """sum_k weight_k reward_k; each part scores every rollout, with the options of the rollout's task."""

    def __init__(self, terms: Mapping[str, Term], context: Context) -> None:
        self.terms, self._context = dict(terms), context
        self._judges: dict[tuple[str, str], Judge] = {}

    @phase("score")
    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with a score of each part."""
        scores_of: list[dict[str, Score]] = [{} for _ in rollouts]
        for name in self.terms:
            for task, places in _by_task(rollouts).items():
                mine = [rollouts[place] for place in places]
                for place, score in zip(places, self._scores(name, task, mine), strict=True):
                    scores_of[place][name] = score
        return [replace(one, scores=scores) for one, scores in zip(rollouts, scores_of, strict=True)]

    def total(self, rollout: Rollout) -> float:
        """The weighted sum of a rollout's scores."""
        return sum(term.weight * rollout.scores[name].value for name, term in self.terms.items())

    def means(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The mean of each part."""
        return {name: sum(one.scores[name].value for one in rollouts) / len(rollouts) for name in self.terms}

    def _scores(self, name: str, task: str, rollouts: Sequence[Rollout]) -> list[Score]:
        try:
            returned = list(self._judge(name, task)(rollouts))
            scores = [one if isinstance(one, Score) else Score(float(one)) for one in returned]
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
            what = f"it raised {type(error).__name__}: {error}{place_in_workspace(error)}"
            fix = "Fix the reward; POSTTRAIN_TRACEBACK=1 shows where. A failed reward never counts as 0"
            raise RewardError(what=what, where=f"reward '{name}'", fix=fix) from error
        if len(scores) != len(rollouts):
            what = f"it gave {len(scores)} scores for {len(rollouts)} rollouts"
            raise RewardError(what=what, where=f"reward '{name}'", fix="Return one score for each rollout")
        bad = [i for i, one in enumerate(scores) if one.status in FAILED or not math.isfinite(one.value)]
        if bad:
            first, rollout = scores[bad[0]], rollouts[bad[0]]
            why = f"{first.status}: {first.reason}" if first.status in FAILED else f"{first.value} is not finite"
            what = f"{len(bad)} of {len(scores)} scores failed, the first for prompt {rollout.prompt.id} ({why})"
            what += f", completion {rollout.text[:80]!r}"
            fix = "Fix the reward. A failed score never counts as 0"
            raise RewardError(what=what, where=f"reward '{name}'", fix=fix)
        return scores

    def _judge(self, name: str, task: str) -> Judge:
        options = self.terms[name].options_for(load_task(task).reward_options.get(name, {}))
        key = name, options.model_dump_json()  # options may hold lists, which cannot be hashed
        if key not in self._judges:
            self._judges[key] = self.terms[name].reward.judge(options, self._context)
        return self._judges[key]


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(rollouts):
        places[one.prompt.task].append(place)
    return places


def judged_prompts(terms: Mapping[str, Term], prompts: Sequence[Prompt], where: str) -> list[Prompt]:
    """The prompts that a reward can judge by more than their form; a line says how many are left out."""
    counted = {name: terms[name] for name in weights(terms)} or dict(terms)
    judging = [name for name, term in counted.items() if not term.reward.shaping] or list(counted)
    unjudged: dict[str, list[tuple[Prompt, str]]] = {}
    for name in judging:
        unreadable = [(one, why) for one in prompts if (why := _why_not(name, counted[name], one)) is not None]
        if unreadable:
            unjudged[name] = unreadable
    if not unjudged:
        return list(prompts)
    lost = set.intersection(*({one.id for one, _ in unjudged.get(name, [])} for name in judging))
    name, unreadable = next(iter(unjudged.items()))
    if len(lost) == len(prompts) and not any(one.answer.strip() for one in prompts):
        what = f"reward '{name}' compares with the prompt's answer, and no prompt has one"
        raise DataError(what=what, where=where, fix="Add answers, or use rewards without them, e.g. {model: 1.0}")
    first, why = next(((one, why) for one, why in unreadable if one.answer.strip()), unreadable[0])
    what = f"reward '{name}' cannot read {len(unreadable)} of {len(prompts)} answers, "
    what += f"the first is {first.answer!r:.60} ({why}; prompt {first.id})"
    if len(lost) == len(prompts):
        fix = "Write answers that it can read, or remove the column and use another reward (docs/rewards.md)"
        raise DataError(what=what, where=where, fix=fix)
    rule = f"{len(lost)} prompts are left out" if lost else "only the other rewards judge them"
    print(f"{where}: {what}: {rule}", file=sys.stderr)
    return [one for one in prompts if one.id not in lost]


def _why_not(name: str, term: Term, prompt: Prompt) -> str | None:
    options = term.options_for(load_task(prompt.task).reward_options.get(name, {}))
    return term.reward.unjudged(prompt, options)


def check_readable(
    terms: Mapping[str, Term], rollouts: Sequence[Rollout], where: str, count: int | None = None
) -> None:
    """Refuse completions (`count` in all) that no reward can read; if only some rewards cannot, print which."""
    counted = weights(terms)
    unread = [name for name in counted if all(one.scores[name].status == "unparseable" for one in rollouts)]
    if not rollouts or not unread:
        return
    named = " and ".join(f"'{name}'" for name in sorted(unread))
    reason = rollouts[0].scores[unread[0]].reason
    what = f"none of {count or len(rollouts)} completions can be read by {named}: {reason}; the first is "
    what += f"{rollouts[0].text!r:.100}"
    fix = "Train on demonstrations in this form (sft), or ask for it in the prompts (docs/rewards.md)"
    cut = sum(one.truncated for one in rollouts)
    if cut > len(rollouts) / 2:
        fix = f"{cut} of {len(rollouts)} are truncated: raise sampling.max_tokens. {fix}"
    if len(unread) == len(counted):
        raise DataError(what=what, where=where, fix=fix)
    print(f"{where}: {what}. {fix}", file=sys.stderr)


def soft_overlong(lengths: Sequence[int], longest: int, cache: int) -> list[float]:
    """0 up to longest - cache, then linear down to -1 at longest, -1 beyond (DAPO, Yu 2025)."""
    return [-min(max((length - (longest - cache)) / cache, 0.0), 1.0) for length in lengths]
