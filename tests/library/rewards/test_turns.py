"""The rewards of a task's steps."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.rewards.reward import Reward, WeightedReward
from posttrain.rewards.turns import (
    REWARDS,
    TurnsOptions,
    _cannot_score,
    _is_of_steps,
    _is_of_turns,
    discounted,
    placed_terms,
    rewards_by_token,
)
from posttrain.rollout import Prompt, Rollout, Score, TokenRow

TASK = "from posttrain.tasks.task import Task\n\ntalking = Task(reply=lambda rollout: None)\nsilent = Task()\n"
STEPS = Reward(lambda options, context: lambda rollouts: [], by_step=lambda options: True)
PLAIN = Reward(lambda options, context: lambda rollouts: [])


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_turns.py").write_text(TASK, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_turns", raising=False)


def episode(task: str = "own_turns:talking", rewards: tuple[float, ...] = (1.0, 2.0), **scores: Score) -> Rollout:
    """Two turns of the policy, of 2 and 1 tokens."""
    row = TokenRow([1], [2, 3, 4, 5], [True, True, False, True])
    prompt = Prompt("p", [], [1], task=task)
    return Rollout(prompt, 0, row, [-1.0] * 3, "", "stop", turn_rewards=rewards, scores=scores)


def scored(rollout: Rollout, gamma: float = 1.0) -> Any:
    (found,) = REWARDS["turns"].score_fn(TurnsOptions(gamma=gamma), None)([rollout])  # type: ignore[arg-type]
    return found


def test_the_sum_of_the_turns() -> None:
    assert scored(episode()) == Score(3.0) and scored(episode(), 0.5) == Score(2.0)
    assert discounted(episode(), 0.5) == [1.0, 1.0]
    none = scored(episode(rewards=()))
    assert none == Score(0.0, "error", "task 'own_turns:talking' does not reward turns")


def test_which_prompts_it_can_score() -> None:
    talking, silent = (Prompt("p", [], (), task=f"own_turns:{name}") for name in ("talking", "silent"))
    assert _cannot_score(talking, TurnsOptions()) is None
    assert _cannot_score(silent, TurnsOptions()) == (
        "its task 'own_turns:silent' has no `reply` that could return rewards"
    )


def test_rewards_that_belong_to_places() -> None:
    turns, steps = (
        WeightedReward(weight=0.5, reward=REWARDS["turns"], options=TurnsOptions()),
        WeightedReward(reward=STEPS),
    )
    others = {"plain": WeightedReward(reward=PLAIN), "measured": WeightedReward(weight=0.0, reward=STEPS)}
    assert placed_terms({"turns": turns, "steps": steps, **others}) == {"turns": turns, "steps": steps}
    assert (_is_of_turns("turns", turns), _is_of_turns("steps", steps)) == (True, False)
    assert _is_of_turns("mine", WeightedReward(type="turns", reward=REWARDS["turns"])) is True
    assert (_is_of_steps(steps), _is_of_steps(others["plain"])) == (True, False)


def test_rewards_lie_on_the_last_token_of_their_place() -> None:
    assert rewards_by_token(
        "turns", WeightedReward(weight=0.5, reward=REWARDS["turns"], options=TurnsOptions()), episode()
    ) == [0.0, 0.5, 1.0]
    steps = WeightedReward(weight=2.0, reward=STEPS)
    assert rewards_by_token("a", steps, episode(a=Score(3.0, steps=[(1, 1.0), (3, 2.0)]))) == [2.0, 0.0, 4.0]
    assert rewards_by_token("a", steps, episode(a=Score(0.0))) == [0.0] * 3
    assert rewards_by_token("a", steps, episode(a=Score(-1.0, "unparseable"))) == [0.0, 0.0, -2.0]
    with pytest.raises(RewardError, match="its scores have no steps"):
        rewards_by_token("a", steps, episode(a=Score(1.0)))
    with pytest.raises(RewardError, match="a step ends at token 4 of 3"):
        rewards_by_token("a", steps, replace(episode(), scores={"a": Score(1.0, steps=[(4, 1.0)])}))
