"""The model of FlashAttention's deterministic backward pass against measured ratios, and the cuts that it chooses."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest

from posttrain.models.forward.schedule import Row, cuts, free_makespan, makespan

HEADS, SMS = 16, 132
"""Qwen3-0.6B on an H100."""
SFT = [288, 384, 451, 510, 566, 621, 678, 737, 800, 870, 949, 1042, 1156, 1307, 1537, 2048]
"""A step of the GPU measurements: 13,944 tokens."""


def rows(sizes: list[int]) -> list[Row]:
    return [(size, size) for size in sorted(sizes, reverse=True)]


def ratio(sizes: list[int], counts: list[int]) -> float:
    """How many times longer than the kernel without order the calls take."""
    found, ends = rows(sizes), [0, *accumulate(counts)]
    assert ends[-1] == len(found)
    return sum(makespan(found[a:b], HEADS, SMS) for a, b in pairwise(ends)) / free_makespan(found, HEADS, SMS)


@pytest.mark.parametrize(
    ("sizes", "whole", "cut"),
    [
        (SFT, (2.0, 2.2), (1.0, 1.55)),
        ([8192] + [512] * 16, (6.7, 7.0), (1.0, 1.6)),
        ([12_288] + [256] * 16, (7.4, 7.8), (1.0, 1.7)),
    ],
)
def test_a_cut_shortens_a_serial_call(sizes: list[int], whole: tuple[float, float], cut: tuple[float, float]) -> None:
    """On an H200 the deterministic kernel cost 2.1 times the free one with the first lengths."""
    counts = cuts(rows(sizes), HEADS, SMS)
    assert len(counts) in (2, 3) and sum(counts) == len(sizes)
    assert whole[0] <= ratio(sizes, [len(sizes)]) <= whole[1]
    assert cut[0] <= ratio(sizes, counts) <= cut[1]


@pytest.mark.parametrize("sizes", [[871] * 16, [32_768], [512] * 100, [64] * 300, [7], [2048] * 8])
def test_rows_of_one_length_are_not_cut(sizes: list[int]) -> None:
    assert cuts(rows(sizes), HEADS, SMS) == [len(sizes)]


def test_a_row_takes_as_long_as_its_tiles() -> None:
    """By hand: 3 blocks of keys, seen by 3, 2 and 1 blocks of queries; a prompt of 2 blocks by each query of 1."""
    assert makespan([(384, 384)], 1, 1) == 6
    assert makespan([(384, 384)], 1, 3) == 3
    assert makespan([(384, 384)], 1, 2) == 3 + 1
    assert makespan([(128, 384)], 1, 1) == 3
    assert free_makespan([(384, 384)], 2, 2) == 6
    assert makespan([(384, 384)] * 2, 5000, 10) == pytest.approx(6 * 2 * 5000 / 10 + 6)
