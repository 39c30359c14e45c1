"""The forward KL by hand, as the table's entry computes it."""

from __future__ import annotations

import math

import pytest

from posttrain.algorithms.distill.kl import DIVERGENCES, FORWARD
from tests.library.by_hand import t


def test_forward_kl() -> None:
    entry = DIVERGENCES[FORWARD]
    teacher, student = t(0.75, 0.25).log()[None], t(0.5, 0.5).log()[None]
    found = entry.measure(student, teacher, 1.0, entry.options(type=FORWARD))
    assert found.tolist() == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5)])
