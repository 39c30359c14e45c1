"""Rewards that a rule decides from the text alone (docs/rewards.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

MARK = "####"
_NUMBER = r"(-?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)\.?\s*\Z"
"""A number that ends a text: a dollar sign, thousands set off by commas and a full stop after it are allowed."""
_FINAL = re.compile(rf"{MARK}\s*{_NUMBER}")
_WHOLE = re.compile(rf"\s*{_NUMBER}")
_REASONS = {
    r"[0-9]\s*/\s*-?[0-9]": "a fraction",
    r"\\boxed": "a \\boxed{} answer",
    r"\A\(?[A-Za-z]\)?\Z": "a choice letter",
    r"\A\Z": "empty",
}


@dataclass(frozen=True)
class Sampled:
    """One completion as a reward sees it."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    text: str
    answer: str
    truncated: bool


def final_answer(text: str) -> Decimal | None:
    """The number after the `####` that ends a completion in GSM8K's format, or None."""
    return _decimal(_FINAL.search(text))


def expected_answer(answer: str) -> Decimal | None:
    """The number that a prompt's answer is, or that comes after its last `####`; None where it is no plain number."""
    return _decimal(_WHOLE.match(answer.rpartition(MARK)[2]))


def why_unread(answer: str) -> str:
    """What an answer is that `expected_answer` cannot read."""
    written = answer.rpartition(MARK)[2].strip()
    return next((reason for pattern, reason in _REASONS.items() if re.search(pattern, written)), "not a number")


def correct(samples: Sequence[Sampled]) -> list[float]:
    """1 where the final answer is the expected number."""
    found = [(final_answer(sample.text), expected_answer(sample.answer)) for sample in samples]
    return [float(answer is not None and answer == expected) for answer, expected in found]


def well_formed(samples: Sequence[Sampled]) -> list[float]:
    """1 where the text ends by itself with the one `#### N` that is in it."""
    return [
        float(not sample.truncated and sample.text.count(MARK) == 1 and final_answer(sample.text) is not None)
        for sample in samples
    ]


def _decimal(found: re.Match[str] | None) -> Decimal | None:
    """The matched number, exactly: as float, large numbers are equal that are not."""
    return Decimal(found.group(1) + found.group(2).replace(",", "")) if found else None
