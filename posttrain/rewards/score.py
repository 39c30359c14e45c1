"""Score rollouts with several rewards, and add up the scores."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from posttrain.distributed import world
from posttrain.errors import PosttrainError, RewardError
from posttrain.measure.phases import phase
from posttrain.rewards.reward import Context, ScoreFn, WeightedReward, guarded, raised
from posttrain.rewards.scorable import NOT_JUDGED, why_not_scorable
from posttrain.rewards.workers import Workers
from posttrain.rollout import FAILED, Prompt, Rollout, Score
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.tasks.task import load_task

CUT = "it was cut off"
"""The reason of the score of a completion that was cut off at max_tokens."""
PAUSE_S = 5.0
"""Seconds before a service that was down is asked again. Each further pause is twice as long."""
LONGEST_PAUSE_S = 300.0


class RewardSum:
    """sum_k weight_k reward_k. Each part scores every rollout, with the options of the rollout's task."""

    def __init__(self, terms: Mapping[str, WeightedReward], context: Context, wait_above: float | None = None) -> None:
        """`wait_above`: the share of unscored rollouts at which to wait for a server or sandbox that is down."""
        self.terms, self._context, self._wait_above = dict(terms), context, wait_above
        self._score_fns: dict[tuple[str, str], ScoreFn] = {}

    @phase("load")
    def load(self, prompts: Sequence[Prompt]) -> None:
        """Create the scorers for these prompts, so that errors appear before a run writes anything."""
        for name, term in self.terms.items():
            for task in dict.fromkeys(prompt.task for prompt in prompts):
                if all(prompt.task != task or why_not_scorable(name, term, prompt) for prompt in prompts):
                    continue
                try:
                    made = self._score_fn(name, task)
                except PosttrainError:
                    raise
                except Exception as error:
                    where = f"{self._context.where}.reward.{name}"
                    fix = HOST.fix("reward", "Fix the reward")
                    raise RewardError(what=raised(error).reason, where=where, fix=fix) from error
                for part in made.parts if isinstance(made, Composed) else ():
                    part.load(prompts)

    @phase("reward")
    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts with a score for each part. A failed episode keeps its status in each part."""
        failed = [rollout.failed for rollout in rollouts]
        scores_of = [{} if failure is None else dict.fromkeys(self.terms, failure) for failure in failed]
        for name in self.terms:
            for task, places in _by_task(rollouts).items():
                part_scores = self._limited(name, task, [rollouts[place] for place in places])
                for place, score in zip(places, part_scores, strict=True):
                    scores_of[place][name] = score
        return [replace(rollout, scores=scores) for rollout, scores in zip(rollouts, scores_of, strict=True)]

    def _limited(self, name: str, task: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores. Those of completions that were cut off have the reward's limit."""
        term, scores = self.terms[name], self._scores_once_up(name, task, rollouts)
        limit = term.reward.most_if_cut(self._options(name, task))
        return scores if limit is None else at_most(limit, rollouts, scores, self._sign(term))

    def _scores_once_up(self, name: str, task: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores. If too many failed because a service is down, wait until it is back."""
        scores, began, pause = self.scores(name, task, rollouts), time.monotonic(), PAUSE_S
        term = self.terms[name]
        while self._wait_above is not None:
            down = [place for place, score in enumerate(scores) if score.status == "infrastructure"]
            if not down or len(down) <= self._wait_above * len(scores):
                break
            waited = f"{time.monotonic() - began:.0f} s so far" if pause > PAUSE_S else "on_failures: wait"
            what = (
                f"{len(down)} of {len(scores)} completions got no score of reward '{name}' ({scores[down[0]].reason})"
            )
            print(f"{self._context.where}: {what}. Waiting, {waited}; next try in {pause:.0f} s", file=sys.stderr)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
            again = range(len(scores)) if term.reward.compares(term.options) else down
            for place, score in zip(again, self.scores(name, task, [rollouts[place] for place in again]), strict=True):
                scores[place] = score
        if pause > PAUSE_S:
            waited = f"{time.monotonic() - began:.0f} s"
            print(f"{self._context.where}: reward '{name}' is back after {waited}", file=sys.stderr)
        return scores

    @property
    def only_measured(self) -> list[str]:
        """The parts that do not count in the sum: metrics, and rewards with weight 0."""
        return [name for name, term in self.terms.items() if not (term.counted or term.gate)]

    def failure(self, rollout: Rollout) -> tuple[str, Score] | None:
        """Return the first required part that could not score the rollout, with its score."""
        needed = (name for name, term in self.terms.items() if term.counted or term.gate)
        return next(((name, rollout.scores[name]) for name in needed if rollout.scores[name].status in FAILED), None)

    def total(self, rollout: Rollout) -> float:
        """Return the weighted sum of a rollout's scores; at most 0 if a gate is closed. No score may have failed."""
        if failed := self.failure(rollout):
            raise ValueError(f"prompt {rollout.prompt.id}: reward '{failed[0]}' has status {failed[1].status}")
        value = sum(term.counted * rollout.scores[name].value for name, term in self.terms.items() if term.counted)
        return min(value, 0.0) if self._closed(rollout) else value

    def totals(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Return the sums of a round's rollouts. Parts may be normalised within the round."""
        wanted = [name for name, term in self.terms.items() if term.normalise]
        if not wanted:
            return [self.total(rollout) for rollout in rollouts]
        columns = {name: _z_scores_of(name, rollouts) for name in wanted}
        return [
            self.total(
                replace(rollout, scores={**rollout.scores, **{name: Score(columns[name][place]) for name in wanted}})
            )
            for place, rollout in enumerate(rollouts)
        ]

    def outcome(self, rollout: Rollout) -> float:
        """Return the sum of the parts that judge the outcome; of all parts if none does."""
        outcome = {name: term.counted for name, term in self.terms.items() if term.outcome}
        if not outcome:
            return self.total(rollout)
        value = sum(weight * rollout.scores[name].value for name, weight in outcome.items())
        return min(value, 0.0) if self._closed(rollout) else value

    def means(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return the mean of each part over the rollouts that it could score."""
        means: dict[str, float] = {}
        for name in self.terms:
            values = [rollout.scores[name].value for rollout in rollouts if rollout.scores[name].status not in FAILED]
            means[name] = sum(values) / len(values) if values else math.nan
        return means

    def scores(self, name: str, task: str, rollouts: Sequence[Rollout]) -> list[Score]:
        """Score the rollouts of one task with one part, except prompts that it cannot judge."""
        prompts = {rollout.prompt.id: rollout.prompt for rollout in rollouts}
        reasons = {key: why_not_scorable(name, self.terms[name], prompt) for key, prompt in prompts.items()}
        judged = [rollout for rollout in rollouts if reasons[rollout.prompt.id] is None]
        scores = guarded(lambda: self._score_fn(name, task)(judged), len(judged)) if judged else []
        if len(scores) != len(judged):
            what = f"it gave {len(scores)} scores for {len(judged)} rollouts"
            raise RewardError(what=what, where=f"reward '{name}'", fix="Return one score for each rollout")
        given = iter(scores)
        why = {key: Score(0.0, "unparseable", f"{NOT_JUDGED}: {reason}") for key, reason in reasons.items()}
        return [next(given) if reasons[rollout.prompt.id] is None else why[rollout.prompt.id] for rollout in rollouts]

    def _closed(self, rollout: Rollout) -> bool:
        """Tell whether a gate is closed."""
        return any(term.gate and rollout.scores[name].value <= 0 for name, term in self.terms.items())

    def _score_fn(self, name: str, task: str) -> ScoreFn:
        term, options = self.terms[name], self._options(name, task)
        key = name, options.model_dump_json()
        if key not in self._score_fns:
            self._score_fns[key] = make_score_fn(name, term, options, replace(self._context, sign=self._sign(term)))
        return self._score_fns[key]

    def _options(self, name: str, task: str) -> Params:
        return self.terms[name].options_for(load_task(task).reward_options)

    def _sign(self, term: WeightedReward) -> Literal[1, -1]:
        """Return -1 if the reward's highest score is the worst in the sum."""
        return 1 if (term.weight < 0) == (self._context.sign < 0) else -1


@dataclass(frozen=True)
class Composed:
    """A scorer that combines other rewards."""

    parts: Collection[RewardSum]
    score_fn: ScoreFn

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[Score | float]:
        """Return a score for each rollout."""
        return self.score_fn(rollouts)


def scored_by_first(reward: RewardSum, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the scored rollouts. Only the first process of the run judges them."""
    if world.count() == 1:
        return reward.score(rollouts)

    def scores() -> list[dict[str, tuple[Any, ...]]]:
        return [{name: score.plain for name, score in rollout.scores.items()} for rollout in reward.score(rollouts)]

    shared = world.from_first(scores)
    return [
        replace(rollout, scores={name: Score(*score) for name, score in scores.items()})
        for rollout, scores in zip(rollouts, shared, strict=True)
    ]


def make_score_fn(name: str, term: WeightedReward, options: Params, context: Context) -> ScoreFn:
    """Return a function that scores rollouts with these options, in worker processes if the reward needs them."""
    if term.reward.in_workers(options):
        return Workers(name, term, options, context.where)
    return term.reward.score_fn(options, replace(context, name=name))


def _z_scores_of(name: str, rollouts: Sequence[Rollout]) -> list[float]:
    """Return the z-scores of a reward among the rollouts of prompts that it judges, and 0 for the others."""
    scores = [rollout.scores[name] for rollout in rollouts]
    judged = [place for place, score in enumerate(scores) if not score.reason.startswith(NOT_JUDGED)]
    values = [0.0] * len(rollouts)
    if judged:
        for place, value in zip(judged, z_scores([scores[place].value for place in judged]), strict=True):
            values[place] = value
    return values


def z_scores(values: Sequence[float]) -> list[float]:
    """Return (x - mean) / standard deviation; 0 if all are equal."""
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return [(value - mean) / deviation if deviation > 0 else 0.0 for value in values]


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, list[int]]:
    """Return task -> the indices of its rollouts that can be scored."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        if rollout.failed is None:
            places[rollout.prompt.task].append(place)
    return places


def at_most(limit: float, rollouts: Sequence[Rollout], scores: Sequence[Score], sign: int = 1) -> list[Score]:
    """Return the scores. Completions that were cut off get min(limit, all scores of their prompt's samples).

    `sign`: -1 if the highest score is the worst. The last step of a score by step takes the difference.
    """
    lowest: dict[str, float] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.status == "ok":
            key = rollout.prompt.id
            lowest[key] = min(lowest.get(key, limit), sign * score.value)
    return [
        _lowered(score, sign * lowest[rollout.prompt.id]) if rollout.truncated and score.status == "ok" else score
        for rollout, score in zip(rollouts, scores, strict=True)
    ]


def _lowered(score: Score, value: float) -> Score:
    *earlier, last = score.steps or [()]
    steps = [*earlier, (last[0], last[1] + value - score.value)] if last else ()
    return replace(score, value=value, reason=CUT, steps=steps)
