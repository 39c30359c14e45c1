"""Rounds that are sampled one ahead, in this thread or in another one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.online.ahead import RoundsAhead, _result
from posttrain.online.collect import Draw
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.rounds import Round
from posttrain.rollout import token_rows
from posttrain.train.step import make_batch
from tests.library.models.tiny import rollout_of


class Rounds:
    """Rounds that write down what happens to them."""

    def __init__(self, background: bool) -> None:
        self.params, self.sampler, self.background = RolloutParams(rounds=3), self, background
        self.said: list[str] = []
        self.cursor = 0

    def sync(self, step: int) -> None:
        self.said.append(f"sync {step}")

    def begin(self, number: int) -> Draw:
        self.said.append(f"begin {number}")
        return Draw([], 0, number)

    def sample(self, draw: Draw) -> list[Any]:
        return [rollout_of(f"of {draw.round}")]

    def finish(self, draw: Draw, sampled: Sequence[Any] | None = None) -> Round:
        assert (sampled is not None) == self.background
        assert sampled is None or [one.text for one in sampled] == [f"of {draw.round}"]
        self.cursor += 1
        return Round(make_batch(token_rows([[1]], [[2]])), {"number": float(draw.round)})

    def state_dict(self) -> dict[str, Tensor]:
        return {"cursor": torch.tensor(self.cursor)}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.cursor = int(tensors["cursor"])


@pytest.mark.parametrize("background", [False, True])
def test_the_next_round_begins_with_the_weights_of_the_start_of_this_one(background: bool) -> None:
    rounds = Rounds(background)
    ahead = RoundsAhead(rounds)  # type: ignore[arg-type]
    found = [ahead.take(number, step).metrics for number, step in ((0, 0), (1, 4), (2, 8))]
    assert found == [{"number": 0.0}, {"number": 1.0}, {"number": 2.0}]
    assert rounds.said == ["sync 0", "begin 0", "begin 1", "sync 4", "begin 2"]
    with pytest.raises(RuntimeError, match="round 2 was not sampled ahead"):
        ahead.take(2, 8)


def test_a_checkpoint_has_the_round_that_was_sampled_ahead() -> None:
    ahead = RoundsAhead(Rounds(background=True))  # type: ignore[arg-type]
    assert ahead.state_dict().keys() == {"cursor"}
    ahead.take(0, 0)
    saved = ahead.state_dict()
    assert int(saved["ahead.number"]) == 1 and int(saved["cursor"]) == 2
    again = RoundsAhead(Rounds(background=False))  # type: ignore[arg-type]
    again.load_state_dict(saved)
    assert again.take(1, 4).metrics == {"number": 1.0}
    empty = RoundsAhead(Rounds(background=False))  # type: ignore[arg-type]
    empty.load_state_dict({"cursor": torch.tensor(0)})
    assert empty._sampled is None


def test_the_result_of_another_thread() -> None:
    done: Future[Any] = Future()
    done.set_result([rollout_of("a")])
    assert [one.text for one in _result(done)] == ["a"]
