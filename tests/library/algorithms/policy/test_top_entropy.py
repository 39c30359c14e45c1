"""Which tokens are dropped where only those of highest entropy are learned from."""

from __future__ import annotations

import torch

from posttrain.algorithms.policy.top_entropy import TopEntropyOptions, dropped
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t


def test_dropped() -> None:
    columns = {"weight": t(1, 1, 1, 1, 0), "step_start_entropy": t(0.1, 0.9, 0.5, 0.9, 2)}
    step = Ragged(torch.tensor([2, 3]), {"sample_key": torch.tensor([5, 3])}, columns)
    half = dropped(step, TopEntropyOptions(type="top_entropy", share=0.5))["dropped"]
    assert half.tolist() == [True, False, True, False, False]
    # of the two highest the sample with the smaller key comes first
    one = dropped(step, TopEntropyOptions(type="top_entropy", share=0.1))["dropped"]
    assert one.tolist() == [True, True, True, False, False]
