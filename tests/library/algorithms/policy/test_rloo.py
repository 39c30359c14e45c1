"""RLOO's advantage by hand."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.rloo import leave_one_out
from tests.library.by_hand import t


def test_leave_one_out() -> None:
    assert_close(leave_one_out(t(1, 0, 2), torch.zeros(3)), t(0, -1.5, 1.5))
    with pytest.raises(ValueError, match="at least two samples"):
        leave_one_out(t(1, 0, 2), torch.tensor([7, 7, 3]))
