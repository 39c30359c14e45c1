"""The adversarial cases: rows that were written before the parser, and what the reward `correct` says of each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of

CASES = Path(__file__).parent / "cases"
"""Written before the parser; their failures were looked at and fixed."""
FRESH = Path(__file__).parent / "fresh_cases"
"""Written when the parser was finished, and judged before anybody looked at them."""
OPTIONS: dict[str, dict[str, Any]] = {
    "boxed": {"answer": "math", "form": "boxed"},
    "hashes": {"answer": "math", "form": "hashes"},
    "answer_is": {"answer": "math", "form": "answer_is"},
    **{name: {"answer": "math", "unmarked": True} for name in ("fractions", "units", "thousands", "latex")},
    "intervals": {"answer": "math", "unmarked": True, "pairs": "intervals"},
    "sets": {"answer": "math", "unmarked": True, "pairs": "points"},
    "choice": {"answer": "choice", "unmarked": True, "choices": "ABCDEFGHIJ"},
    "exact": {"answer": "exact"},
    "numeric": {"answer": "numeric", "find": "last"},
}
"""Dialect -> the options of `correct` that judge it."""
DIALECTS = tuple(OPTIONS)
MATH = tuple(name for name, options in OPTIONS.items() if options["answer"] == "math")


@dataclass(frozen=True)
class Case:
    """A row of the cases."""

    number: int
    answer: str
    completion: str
    right: bool
    kind: str
    options: CorrectOptions


def cases(dialect: str, folder: Path = CASES) -> list[Case]:
    """The rows of a dialect; their numbers begin at 0."""
    lines = (folder / f"{dialect}.jsonl").read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines):
        row = json.loads(line)
        after = {"after": row["after"]} if row.get("after") else {}
        options = CorrectOptions(**OPTIONS[dialect], **after)
        found.append(Case(number, row["answer"], row["completion"], row["right"], row["kind"], options))
    return found


def judged(case: Case) -> Score:
    """What the reward says."""
    judge = correct.score_fn(case.options, None)  # type: ignore[arg-type]
    (score,) = judge([rollout_of(case.completion, case.answer)])
    assert isinstance(score, Score)
    return score


@dataclass(frozen=True)
class Count:
    """How many of the cases a grader gets wrong."""

    right: int
    wrong: int
    false_positives: int
    false_negatives: int


def count(some: Iterable[tuple[bool, bool]]) -> Count:
    """The count of pairs (right by the label, right by the grader)."""
    pairs = list(some)
    right = sum(label for label, _ in pairs)
    positives = sum(not label and said for label, said in pairs)
    negatives = sum(label and not said for label, said in pairs)
    return Count(right, len(pairs) - right, positives, negatives)


def interval(hits: int, of: int) -> tuple[float, float]:
    """The 95 % Clopper-Pearson interval of a share, by bisection of the binomial's tails."""

    def tail(share: float, least: int) -> float:
        logs = (math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(least, of + 1))
        terms = zip(range(least, of + 1), logs, strict=True)
        return sum(math.exp(log + k * math.log(share) + (of - k) * math.log1p(-share)) for k, log in terms)

    def root(least: int, level: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, least) < level else (low, middle)
        return low

    return (0.0 if hits == 0 else root(hits, 0.025)), (1.0 if hits == of else root(hits + 1, 0.975))
