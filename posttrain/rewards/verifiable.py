"""Rewards that a rule decides from the text alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

FINAL = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)\s*\Z")


@dataclass(frozen=True)
class Sampled:
    """One completion as a reward sees it."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    text: str
    answer: str
    truncated: bool


def final_answer(text: str) -> str | None:
    """The number after `####` that ends a text in GSM8K's format, or None."""
    found = FINAL.search(text)
    return found.group(1).replace(",", "") if found else None


def correct(samples: Sequence[Sampled]) -> list[float]:
    """1 where the final answer is the expected one."""
    return [float(_same(final_answer(sample.text), sample.answer)) for sample in samples]


def well_formed(samples: Sequence[Sampled]) -> list[float]:
    """1 where the text ends by itself with the one `#### N` that is in it."""
    return [
        float(not sample.truncated and sample.text.count("####") == 1 and final_answer(sample.text) is not None)
        for sample in samples
    ]


def _same(found: str | None, expected: str) -> bool:
    if found is None or not expected:
        return False
    try:
        return Decimal(found) == Decimal(expected.replace(",", ""))  # as float, large numbers are equal that are not
    except InvalidOperation:
        return found == expected
