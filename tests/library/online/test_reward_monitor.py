"""A run whose samples give it nothing to learn says so, with the settings that help, and ends after its patience."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.errors import TrainingError
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.rollout import token_rows
from posttrain.train.step import Batch, make_batch


def group(*rewards: float, outcome: float = 0.0, truncated: bool = False, logp: float = -1.0) -> Batch:
    """A group with these rewards."""
    count = len(rewards)
    columns = {
        "reward": torch.tensor(rewards),
        "outcome": torch.full((count,), outcome),
        "truncated": torch.full((count,), truncated),
    }
    return make_batch(token_rows([[1]] * count, [[2]] * count), columns, {"old_logp": torch.full((count,), logp)})


def monitor(**settings: Any) -> RewardMonitor:
    return RewardMonitor("online.runs.grpo", {}, **{"compares": True, **settings})


def test_groups_that_agree_are_printed_and_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    watch = monitor()
    for number in range(7):
        watch.round([group(0.5, 0.5), group(0.0, 0.0)])
        assert ("in the last 5 rounds" in capsys.readouterr().err) == (number == 4), "once for each time it happens"
    resumed = monitor()
    resumed.load(watch.tensor())
    resumed.round([group(0.5, 0.5)])
    resumed.round([group(0.5, 0.5)])
    with pytest.raises(TrainingError, match="in the last 10 rounds the rewards of every group are equal") as caught:
        resumed.round([group(0.5, 0.5)])
    for part in ("patience = 10", "mean reward 0.294", "temperature", "group_size", "reward", "prompts"):
        assert part in str(caught.value)


def test_one_group_with_a_signal_is_enough() -> None:
    watch = monitor(patience=2)
    for _ in range(5):
        watch.round([group(0.5, 0.5)])
        watch.round([group(0.5, 0.5), group(0.0, 1.0)])


@pytest.mark.parametrize(
    ("fault", "said", "knob"),
    [
        ({"truncated": True}, "every completion is truncated", "rollout.sampling.max_tokens"),
        ({"logp": -1e-5}, "the samples of the policy hardly differ", "optimizer.lr"),
    ],
)
def test_truncated_and_collapsed_samples_end_the_run(fault: dict[str, Any], said: str, knob: str) -> None:
    watch = monitor(compares=False, patience=3)
    watch.round([group(0.0, 1.0, **fault)])
    watch.round([group(0.0, 1.0, **fault)])
    with pytest.raises(TrainingError, match=said) as caught:
        watch.round([group(0.0, 1.0, **fault)])
    assert knob in str(caught.value)


def test_a_run_that_has_solved_its_prompts_does_not_end(capsys: pytest.CaptureFixture[str]) -> None:
    watch = monitor(patience=2)
    for _ in range(5):
        watch.round([group(1.2, 1.2, outcome=1.0, logp=-1e-6)])
    assert capsys.readouterr().err == ""


def test_no_patience_is_endless_and_the_end_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    watch = monitor(patience=None)
    for _ in range(12):
        watch.round([group(0.0, 0.0), group(0.0, 0.0)])
    watch.close()
    printed = capsys.readouterr().err
    assert "online.runs.grpo: in 100% of all 24 groups" in printed and "mean reward 0" in printed
    for _ in range(24):
        watch.round([group(0.0, 1.0), group(1.0, 1.0)])
    watch.close()
    monitor(compares=False).close()
    assert capsys.readouterr().err == "", "groups that differ have a gradient"
