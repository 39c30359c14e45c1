"""TRPO's objective by hand."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.policy.trpo import importance
from posttrain.settings.choices import Options
from tests.library.by_hand import t, tokens


def test_importance() -> None:
    assert_close(importance(tokens(t(2, 0.5), t(3, -4)), Options(type="importance")), t(6, -2))
