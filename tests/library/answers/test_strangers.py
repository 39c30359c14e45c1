"""Cases by people who had not read the parser: what it gets wrong must not become more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.library.answers.strangers import ATTACKER, CASES, FOURTH, SECOND, THIRD, shares, table, verdicts

FOREIGN = {"language_zh": 3, "language_ru": 2, "language_es": 2, "language_fr": 2, "language_de": 2,
           "choice_foreign": 5, "european_languages": 1}  # fmt: skip
"""Missed right answers of other languages, in which only a box or `####` marks an answer, and no phrase does."""
KNOWN: dict[Path, dict[tuple[bool, str], int]] = {
    CASES: {(False, "unmarked"): 1},
    SECOND: {
        (False, "choice_unmarked_right"): 2,
        (False, "choice_unmarked_wrong"): 1,
        (False, "unmarked_hand_right"): 2,
        **{(True, name): count for name, count in FOREIGN.items()},
    },
    THIRD: {
        (True, "note after the answer"): 2,
    },
    ATTACKER: {
        (True, "words for mixed"): 1,
        (True, "words"): 2,
        (True, "sentence"): 2,
        (True, "not but"): 1,
        (True, "loss of"): 1,
        (True, "i before coefficient"): 2,
        (True, "finished equation"): 2,
        (True, "equation with conversion"): 1,
        (True, "equation"): 3,
        (True, "degree sign on value"): 1,
        (True, "below zero"): 1,
        (True, "base in words"): 2,
    },
}
"""Wrong verdicts: whether the answer is marked, the class, how many."""


@pytest.mark.slow
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_no_class_has_more_wrong_verdicts_than_are_known(path: Path) -> None:
    found = verdicts(path)
    wrong = Counter((one.case["marked"], one.case["class"]) for one in found if one.is_wrong)
    assert dict(wrong) == KNOWN[path], [one.case for one in found if one.is_wrong]
    marked = [one for one in found if one.case["marked"]]
    wrong_answers, accepted, right_answers, missed = shares(marked)
    assert wrong_answers > 200 and right_answers > 200
    assert accepted <= 0.005 * wrong_answers
    *_, right_answers, missed = shares(one for one in marked if one.case["class"] not in FOREIGN)
    assert missed <= 0.05 * right_answers
    assert table(found)[-1].endswith("answers per second on one core.")


@pytest.mark.slow
def test_a_set_that_no_repair_has_used_is_judged_within_the_goals() -> None:
    """Its cases are hidden from whoever works on the parser: no message shows one."""
    wrong_answers, accepted, right_answers, missed = shares(one for one in verdicts(FOURTH) if one.case["marked"])
    assert wrong_answers > 400 and right_answers > 400
    assert (accepted <= 0.005 * wrong_answers, missed <= 0.05 * right_answers) == (True, True)
