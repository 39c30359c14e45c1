"""The reverse KL by hand."""

from __future__ import annotations

import math

import pytest

from posttrain.algorithms.distill.reverse_kl import DIVERGENCES, reverse_kl
from tests.library.by_hand import t


def test_reverse_kl() -> None:
    teacher, student = t(0.75, 0.25).log()[None], t(0.5, 0.5).log()[None]
    expected = [0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)]
    assert reverse_kl(student, teacher).tolist() == pytest.approx(expected)
    entry = DIVERGENCES["reverse_kl"]
    assert entry.measure(student, teacher, 1.0, entry.options(type="reverse_kl")).tolist() == pytest.approx(expected)
