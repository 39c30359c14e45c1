"""The rewards that a task's own steps give to the turns of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from posttrain.params.params import Params
from posttrain.rewards.reward import WeightedReward, rule
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.tasks.task import load_task


class TurnsOptions(Params):
    """How an episode's rewards are added up."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount of each later turn: the sum of gamma^t r_t")


def _cannot_score(prompt: Prompt, options: TurnsOptions) -> str | None:  # noqa: ARG001
    task = load_task(prompt.task)
    return None if task.has_turns else f"its task '{prompt.task}' has no `reply` that could give rewards"


@rule(TurnsOptions, _cannot_score)
def turns(rollout: Rollout, options: TurnsOptions) -> Score:
    """sum_t gamma^t r_t over the rewards of the task's steps."""
    if not rollout.turn_rewards:
        return Score(0.0, "error", f"task '{rollout.prompt.task}' gives no rewards to turns")
    return Score(sum(discounted(rollout, options.gamma)))


def discounted(rollout: Rollout, gamma: float) -> Sequence[float]:
    """gamma^t r_t of each turn."""
    return [gamma**t * reward for t, reward in enumerate(rollout.turn_rewards)]


def placed_by_turn(terms: Mapping[str, WeightedReward]) -> WeightedReward | None:
    """Return the part whose rewards belong to single turns; None if there is none, or only its sum has a meaning."""
    term = next((term for name, term in terms.items() if (term.type or name) == NAME), None)
    return term if term is not None and term.counted and not term.normalise else None


def rewards_by_token(term: WeightedReward, rollout: Rollout) -> list[float]:
    """Return the weighted reward of each turn on the last sampled token of that turn, 0 on the others."""
    values = [0.0] * len(rollout.logps)
    options: Any = term.options_for(load_task(rollout.prompt.task).reward_options)
    for end, reward in zip(rollout.row.turn_ends, discounted(rollout, options.gamma), strict=False):
        values[end - 1] = term.counted * reward
    return values


NAME = "turns"
REWARDS = {"turns": turns}
