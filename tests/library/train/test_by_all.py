"""Results of a batch that is computed part by part, in the order of its rows. tests/pipeline/processes has several."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import TokenRow
from posttrain.train.by_all import _in_order, by_all, first_of_items
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, make_batch
from tests.library.models.tiny import tiny_model

ROWS = [TokenRow([1, 2], [3] * size) for size in (40, 3, 50, 7)]


def test_results_come_in_the_order_of_the_rows() -> None:
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu", threads=1)), micro_tokens=64)
    batch = make_batch(ROWS, {"score": torch.tensor([5.0, 6, 7, 8])})
    assert len([*models.own_micro_batches(batch)]) > 1

    def scores(micro: Batch) -> list[Tensor]:
        score = micro.columns.rows["score"]
        return [score, torch.stack([score, -score], 1), torch.repeat_interleave(score, micro.columns.lengths_B)]

    one, two = by_all(models, batch, lambda micro: scores(micro)[:2], [1] * 4)
    assert one.tolist() == [5, 6, 7, 8] and two.tolist() == [[5, -5], [6, -6], [7, -7], [8, -8]]
    [tokens] = by_all(models, batch, lambda micro: scores(micro)[2:], [40, 3, 50, 7])
    assert tokens.tolist() == [5.0] * 40 + [6.0] * 3 + [7.0] * 50 + [8.0] * 7


def test_items_have_one_result() -> None:
    assert first_of_items(make_batch(ROWS, items=torch.tensor([0, 0, 3, 4]))) == [1, 0, 1, 1]


def test_entries_of_other_processes_are_put_in_order() -> None:
    assert _in_order(torch.tensor([7, 8, 1, 2, 3]), [2, 0, 1], [2, 1, 2]).tolist() == [1, 2, 3, 7, 8]
