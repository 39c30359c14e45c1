"""GDPO by hand: z-scores of each reward, summed and whitened."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from posttrain.algorithms.objective import part_columns
from posttrain.algorithms.policy.gdpo import decoupled
from tests.library.by_hand import advantage_of, rewards, t

GROUP = torch.tensor([0, 0, 1, 1])
FIRST, SECOND = t(1, 0, 0, 1), t(5, 0, 0, 5)


def test_decoupled() -> None:
    # each part is +-z in its group, so the sum is +-4 z; whitened by the sample deviation of +-1: sqrt(4 / 3)
    expected = t(1, -1, -1, 1) / (4 / 3) ** 0.5
    assert_close(decoupled([(FIRST, 1.0), (SECOND, 3.0)], GROUP), expected, atol=1e-4, rtol=0)


def test_the_entry_reads_the_parts_of_the_rows() -> None:
    rows = {"group": GROUP, **part_columns({"one": (FIRST, 1.0), "two": (-SECOND, 3.0)})}
    found = advantage_of("gdpo", rewards(FIRST, rows=rows))
    assert_close(found, t(-1, 1, 1, -1) / (4 / 3) ** 0.5, atol=1e-3, rtol=0)
