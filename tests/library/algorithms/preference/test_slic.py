"""SLiC's hinge by hand, within the margin and beyond it."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference.slic import slic
from tests.library.by_hand import t


def test_slic() -> None:
    assert_close(slic(t(2), t(-1), 3.5), t(0.5))
    assert_close(slic(t(2), t(-1), 1.0), t(0))
