"""GPO's preference module: what it attends to, and its loss."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from posttrain.formulas.group_preferences import GroupPreferences, share_divergence
from tests.library.by_hand import t


def test_share_divergence() -> None:
    shares, scores = t(0.75, 0.25, 1, 0).view(2, 2), t(0, 0, 0, 0).view(2, 2)
    assert_close(share_divergence(scores, shares), t(0.75 * math.log(1.5) + 0.25 * math.log(0.5), math.log(2)))


def test_predictions_read_known_questions_alone() -> None:
    torch.manual_seed(0)
    model = GroupPreferences(3, hidden=8, layers=1, heads=2).double()
    options, shares = torch.randn(1, 3, 2, 3, dtype=torch.float64), torch.rand(1, 3, 2, dtype=torch.float64)
    known = torch.tensor([[True, False, False]])
    before = model(options, shares, known)
    assert before.shape == (1, 3, 2)
    other = options.clone()
    other[0, 2] += 1
    after = model(other, shares, known)
    assert_close(after[0, :2], before[0, :2])
    assert not torch.allclose(after[0, 2], before[0, 2])
    unread = shares.clone()
    unread[0, 1:] = 0.9
    assert_close(model(options, unread, known), before)
    shown = shares.clone()
    shown[0, 0] += 1
    assert not torch.allclose(model(options, shown, known)[0, 1], before[0, 1])
