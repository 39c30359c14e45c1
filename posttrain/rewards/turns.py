"""The rewards that a task's steps give to the turns of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from posttrain.errors import RewardError
from posttrain.rewards.reward import WeightedReward, rule
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params
from posttrain.tasks.task import load_task


class TurnsOptions(Params):
    """How an episode's rewards are added up."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount factor gamma per turn, in the sum of gamma^t r_t")


def _cannot_score(prompt: Prompt, options: TurnsOptions) -> str | None:  # noqa: ARG001
    task = load_task(prompt.task)
    return None if task.has_turns else f"its task '{prompt.task}' has no `reply` that could return rewards"


@rule(TurnsOptions, _cannot_score)
def turns(rollout: Rollout, options: TurnsOptions) -> Score:
    """Return sum_t gamma^t r_t over the rewards of the task's steps."""
    if not rollout.turn_rewards:
        return Score(0.0, "error", f"task '{rollout.prompt.task}' does not reward turns")
    return Score(sum(discounted(rollout, options.gamma)))


def discounted(rollout: Rollout, gamma: float) -> Sequence[float]:
    """Return gamma^t r_t of each turn."""
    return [gamma**t * reward for t, reward in enumerate(rollout.turn_rewards)]


def placed_terms(terms: Mapping[str, WeightedReward]) -> dict[str, WeightedReward]:
    """Return the parts with rewards for single turns or steps. Other parts are only meaningful as a sum."""
    placed = {name: term for name, term in terms.items() if term.counted and not term.normalise}
    return {
        name: term for name, term in placed.items() if _is_of_turns(name, term) or term.reward.by_step(term.options)
    }


def rewards_by_token(name: str, term: WeightedReward, rollout: Rollout) -> list[float]:
    """Return the weighted reward of each turn or step on its last sampled token, and 0 on all other tokens."""
    values = [0.0] * len(rollout.logps)
    for end, reward in _of_turns(term, rollout) if _is_of_turns(name, term) else _of_steps(name, rollout):
        if not 1 <= end <= len(values):
            what, fix = f"a step ends at token {end:g} of {len(values)}", "Count the sampled tokens up to its end"
            raise RewardError(what=what, where=f"reward '{name}', prompt {rollout.prompt.id}", fix=fix)
        values[int(end) - 1] += term.counted * reward
    return values


def _is_of_turns(name: str, term: WeightedReward) -> bool:
    return (term.type or name) == NAME


def _is_of_steps(term: WeightedReward) -> bool:
    return term.reward.by_step(term.options)


def _of_turns(term: WeightedReward, rollout: Rollout) -> Iterable[Sequence[float]]:
    options: Any = term.options_for(load_task(rollout.prompt.task).reward_options)
    return zip(rollout.row.turn_ends, discounted(rollout, options.gamma), strict=False)


def _of_steps(name: str, rollout: Rollout) -> Iterable[Sequence[float]]:
    score = rollout.scores[name]
    steps = score.steps
    if not steps and (score.status == "unparseable" or not score.value):
        return [(len(rollout.logps), score.value)] if score.value else []
    if not steps:
        what = (
            "its scores have no steps: it returned none, or the rollouts are stored, and stored rollouts have no steps"
        )
        raise RewardError(what=what, where=f"reward '{name}'", fix="Return Score(value, steps=...), or sample again")
    return steps


NAME = "turns"
REWARDS = {"turns": turns}
