"""Rewards made from other rewards: a cascade, and milestones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, Examples, Reward, ScoreFn, WeightedReward
from posttrain.rewards.scorable import known_completions, why_not_scorable
from posttrain.rewards.score import Composed, RewardSum
from posttrain.rollout import FAILED, Prompt, Rollout, Score
from posttrain.settings.params import Params


def _two_or_more(terms: dict[str, WeightedReward]) -> dict[str, WeightedReward]:
    if len(terms) < 2:
        raise ValueError(f"it has {len(terms)} reward. Give two or more, e.g. {{correct: 1.0, model: 1.0}}")
    for name, term in terms.items():
        if term.gate or term.normalise:
            raise ValueError(
                f"{name}: gate and normalise apply to a sum, but these rewards are asked in turn. Remove them"
            )
    return terms


Several = Annotated[Rewards, AfterValidator(_two_or_more)]


class CascadeOptions(Params):
    """A list of rewards. Each reward scores only the completions that the reward before it could not score."""

    of: Several = Field(description="rewards in order, as in `reward`")
    unsure: dict[str, list[float]] = Field(
        default_factory=dict,
        description="reward -> [low, high]: a score in this range is unsure, so the next reward decides",
    )

    @model_validator(mode="after")
    def _bands(self) -> CascadeOptions:
        for name, band in self.unsure.items():
            if name not in list(self.of)[:-1]:
                raise ValueError(f"unsure has '{name}', which is missing from `of` or is its last entry")
            if len(band) != 2 or band[0] > band[1]:
                raise ValueError(f"unsure.{name} = {band}: write two numbers in order, e.g. [-0.5, 0.5]")
        return self


class MilestoneOptions(Params):
    """Milestones: rewards that a completion reaches one after another."""

    of: Several = Field(description="rewards in order, as in `reward`; a milestone is reached at score 1")
    credits: list[float] | None = Field(
        None, min_length=2, description="credit of each milestone; null: equal credits with sum 1"
    )
    in_order: bool = Field(True, description="count a milestone only if all milestones before it are reached")

    @model_validator(mode="after")
    def _a_credit_each(self) -> MilestoneOptions:
        if self.credits is not None and len(self.credits) != len(self.of):
            raise ValueError(
                f"credits has {len(self.credits)} numbers for {len(self.of)} rewards. Give one number for each reward"
            )
        return self


def _parts(options: CascadeOptions | MilestoneOptions, context: Context) -> dict[str, RewardSum]:
    """Return each reward as a separate sum."""
    return {name: RewardSum({name: term}, context) for name, term in options.of.items()}


def _cascade(options: CascadeOptions, context: Context) -> ScoreFn:
    parts = _parts(options, context)

    def score(rollouts: Sequence[Rollout]) -> list[Score]:
        scores: list[Score] = [Score(0.0)] * len(rollouts)
        left = list(range(len(rollouts)))
        for name, part in parts.items():
            low, high = options.unsure.get(name, (1.0, 0.0))
            for place, rollout in zip(left, part.score([rollouts[place] for place in left]), strict=True):
                scores[place] = rollout.scores[name]
            scored = [i for i in left if scores[i].status not in FAILED]
            left = [i for i in scored if scores[i].status == "unparseable" or low <= scores[i].value <= high]
        return scores

    return Composed(parts.values(), score)


def _milestones(options: MilestoneOptions, context: Context) -> ScoreFn:
    parts = _parts(options, context)
    worth = options.credits or [1 / len(parts)] * len(parts)

    def score(rollouts: Sequence[Rollout]) -> list[Score]:
        columns = [[rollout.scores[name] for rollout in part.score(rollouts)] for name, part in parts.items()]
        return [_credit(row, worth, in_order=options.in_order) for row in zip(*columns, strict=True)]

    return Composed(parts.values(), score)


def _credit(scores: Sequence[Score], worth: Sequence[float], *, in_order: bool) -> Score:
    """Return the total credit of the reached milestones, or the failed score if one failed before the end."""
    value = 0.0
    for score, credit in zip(scores, worth, strict=True):
        if score.status in FAILED:
            return score
        if score.value >= 1:
            value += credit
        elif in_order:
            break
    unread = all(score.status == "unparseable" for score in scores)
    return Score(value, "unparseable", scores[0].reason) if unread else Score(value)


def _cannot_score_by_all(prompt: Prompt, options: CascadeOptions) -> str | None:
    reasons = [why_not_scorable(name, term, prompt) for name, term in options.of.items()]
    return reasons[0] if all(reasons) else None


def _cannot_score_by_one(prompt: Prompt, options: MilestoneOptions) -> str | None:
    return next((why for name, term in options.of.items() if (why := why_not_scorable(name, term, prompt))), None)


def _first_examples(prompt: Prompt, options: CascadeOptions) -> Examples:
    """Return the right examples of the first reward. A wrong one may be unreadable for it and passed on to the next."""
    return Examples(known_completions(*next(iter(options.of.items())), prompt).right)


def _compares(options: CascadeOptions | MilestoneOptions) -> bool:
    return any(term.reward.compares(term.options) for term in options.of.values())


REWARDS = {
    "cascade": Reward(_cascade, CascadeOptions, _cannot_score_by_all, examples=_first_examples, compares=_compares),
    "milestones": Reward(_milestones, MilestoneOptions, _cannot_score_by_one, compares=_compares),
}
