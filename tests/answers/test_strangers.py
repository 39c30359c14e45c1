"""Cases by people who had not read the parser: what it gets wrong must not become more."""

from __future__ import annotations

from collections import Counter

from tests.answers.strangers import shares, table, verdicts

KNOWN: dict[tuple[bool, str], int] = {(False, "unmarked"): 1}
"""Wrong verdicts: whether the answer is marked, the class, how many."""


def test_no_class_has_more_wrong_verdicts_than_are_known() -> None:
    found = verdicts()
    wrong = Counter((one.case["marked"], one.case["class"]) for one in found if one.is_wrong)
    assert dict(wrong) == KNOWN, [one.case for one in found if one.is_wrong]
    marked = [one for one in found if one.case["marked"]]
    wrong_answers, accepted, right_answers, missed = shares(marked)
    assert wrong_answers > 200 and right_answers > 200
    assert accepted <= 0.005 * wrong_answers and missed <= 0.05 * right_answers
    assert table(found)[-1].endswith("answers per second on one core.")
