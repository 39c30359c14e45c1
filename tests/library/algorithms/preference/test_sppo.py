"""SPPO's loss by hand."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference.sppo import sppo
from tests.library.by_hand import t


def test_sppo() -> None:
    assert_close(sppo(t(5), t(-3), 0.1), t(0 + 4))
