"""One optimizer step: its batch, and the gradient of its loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.objective import Loss
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.distributed import world
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import Kept, TokenRow, token_rows
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, StepClosure, _detached, _of_all, concatenate, make_batch
from tests.library.models.tiny import plain_logps, random_rows, tiny_model

CPU = Runtime(DeviceParams(device="cpu", threads=1))
PLAIN = Runtime(DeviceParams(device="cpu", threads=1), fused=False)
PROMPTS, COMPLETIONS = random_rows(6)
ROWS = token_rows(PROMPTS, COMPLETIONS)
THREE = [TokenRow([1], [2, 3]), TokenRow([4, 5], [6], [True]), TokenRow([], [7, 8, 9], [False, True, True])]


def three() -> Batch:
    tokens = {"logp": torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])}
    return make_batch(THREE, {"reward": torch.tensor([1.0, 2.0, 3.0])}, tokens, torch.tensor([0, 0, 1]))


def test_a_batch_numbers_its_rows_and_counts_trained_tokens() -> None:
    batch = three()
    assert len(batch) == 3 and batch.columns.lengths_B.tolist() == [2, 1, 2]
    assert batch.columns.rows["row"].tolist() == [0, 1, 2] and batch.rows is THREE


def test_rows_are_chosen_and_numbered_again() -> None:
    chosen = three().select([2, 0])
    assert chosen.rows == [THREE[2], THREE[0]] and chosen.columns.rows["row"].tolist() == [0, 1]
    assert chosen.columns.rows["reward"].tolist() == [3.0, 1.0]
    assert chosen.columns.tokens["logp"].tolist() == [-4.0, -5.0, -1.0, -2.0]
    prepared = three().with_prepared(three().columns.select(torch.tensor([1, 2])))
    assert prepared.rows == THREE[1:] and prepared.columns.rows["row"].tolist() == [0, 1]
    other = three().columns.with_rows(reward=torch.zeros(3))
    assert three().with_columns(other).columns is other and three().with_columns(other).rows is THREE


def test_a_batch_survives_as_tensors() -> None:
    kept = Kept(torch.tensor([6, 7], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32))
    experts = torch.ones(3, 1, 2, dtype=torch.int16)
    for batch in (three(), make_batch([TokenRow([1], [2, 3], None, kept, experts)])):
        saved = batch.tensors()
        assert all(isinstance(part, Tensor) for part in saved.values())
        again = Batch.from_tensors(saved)
        assert [(row.prompt, row.rest, row.mask) for row in again.rows] == [
            (list(row.prompt), list(row.rest), row.mask) for row in batch.rows
        ]
        assert again.tensors().keys() == saved.keys()
        assert all(torch.equal(part, saved[name]) for name, part in again.tensors().items())
    assert {"kept.ids", "kept.counts", "experts"} <= saved.keys() and again.rows[0].kept is not None


def test_batches_are_joined() -> None:
    first, second = three().select([0]), three().select([2])
    assert concatenate([first]) is first
    both = concatenate([first, second])
    assert both.rows == [THREE[0], THREE[2]] and both.columns.rows["reward"].tolist() == [1.0, 3.0]
    assert both.columns.rows["row"].tolist() == [0, 1] and both.columns.tokens["logp"].tolist() == [
        -1.0,
        -2.0,
        -4.0,
        -5.0,
    ]


def closure(runtime: Runtime = CPU, micro_tokens: int = 16_384) -> StepClosure:
    models = ModelSet(tiny_model(), runtime, micro_tokens=micro_tokens)
    objective, batch = LikelihoodObjective(LikelihoodConfig()), make_batch(ROWS)
    return StepClosure(objective, models, batch.with_prepared(objective.prepare(batch.columns, {}).step))


def expected() -> tuple[float, Any]:
    """The mean likelihood by transformers' own path, and a model with its gradient."""
    model = tiny_model()
    loss = -plain_logps(model, PROMPTS, COMPLETIONS).mean()
    loss.backward()
    return float(loss.detach()), model


@pytest.mark.parametrize("micro_tokens", [16_384, 64])
@pytest.mark.parametrize("runtime", [CPU, PLAIN], ids=["fused", "autograd"])
def test_the_gradient_is_that_of_whole_rows(runtime: Runtime, micro_tokens: int) -> None:
    loss, model = expected()
    one = closure(runtime, micro_tokens)
    metrics = one()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5) and "entropy" in metrics
    for mine, theirs in zip(one.models.policy.parameters(), model.parameters(), strict=True):
        assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_losses_and_metrics_at_the_present_weights() -> None:
    loss, _ = expected()
    one = closure(micro_tokens=64)
    assert one.loss() == pytest.approx(loss, rel=1e-5)
    measured = one.measured()
    assert measured["loss"] == pytest.approx(loss, rel=1e-5) and measured == pytest.approx(closure()())
    assert one.tokens == sum(map(len, ROWS))
    assert sum(len(micro) for micro in one.micro_batches()) == 6 and len(one.micro_batches()) > 1
    assert all(part.grad is None for part in one.models.policy.parameters())
    totals = one.totals()
    assert all(isinstance(part, Tensor) and not part.requires_grad for part in totals.values())


def test_pairs_are_not_fused() -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
    models = ModelSet(tiny_model(), CPU, tiny_model(1))
    batch = make_batch(ROWS, {"side": torch.tensor([1.0, -1.0] * 3)}, items=torch.arange(3).repeat_interleave(2))
    batch = models.add_scored_columns(batch, objective.needs)
    step = batch.with_prepared(objective.prepare(batch.columns, objective.initial_state()).step)
    one = StepClosure(objective, models, step, state=objective.initial_state())
    columns, recording = one._forward(step, models.packed(step))
    assert columns.tokens["logp"].requires_grad and recording is not None
    assert one()["loss"] == pytest.approx(one.loss(), rel=1e-5)


def test_metrics_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    totals, routing = {"loss": torch.tensor(1.5)}, {"balance": torch.tensor(0.25)}
    assert _of_all(totals, routing) == {**totals, **routing}
    monkeypatch.setattr(world, "count", lambda: 2)
    monkeypatch.setattr(world, "gathered", lambda mine: [mine, copy.copy(mine)])
    found = _of_all(totals, routing)
    assert {name: float(part) for name, part in found.items()} == {"loss": 3.0, "balance": 0.25}


def test_numbers_without_gradient() -> None:
    total = torch.tensor(2.0, requires_grad=True)
    found = _detached(Loss(total, {"entropy": total * 3}))
    assert {name: float(part) for name, part in found.items()} == {"loss": 2.0, "entropy": 6.0}
    assert not any(part.requires_grad for part in found.values())
