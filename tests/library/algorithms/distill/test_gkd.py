"""The Jensen-Shannon divergence by hand."""

from __future__ import annotations

import math

import pytest

from posttrain.algorithms.distill.gkd import DIVERGENCES, jensen_shannon
from tests.library.by_hand import t


def test_jensen_shannon() -> None:
    teacher, student = t(0.75, 0.25).log()[None], t(0.5, 0.5).log()[None]
    mixed = [0.4 * 0.75 + 0.6 * 0.5, 0.4 * 0.25 + 0.6 * 0.5]
    expected = 0.4 * sum(p * math.log(p / m) for p, m in zip((0.75, 0.25), mixed, strict=True))
    expected += 0.6 * sum(q * math.log(q / m) for q, m in zip((0.5, 0.5), mixed, strict=True))
    assert jensen_shannon(student, teacher, 0.4).tolist() == pytest.approx([expected])
    entry = DIVERGENCES["jensen_shannon"]
    found = entry.measure(student, teacher, 1.0, entry.options(type="jensen_shannon", beta=0.4))
    assert found.tolist() == pytest.approx([expected])
