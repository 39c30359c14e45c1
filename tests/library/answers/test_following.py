"""Words after a value: which leave it as it is."""

from __future__ import annotations

import pytest

from posttrain.answers.following import may_follow

QUESTION = "Six rows have six red apples each. How many apples are in the boxes?"


@pytest.mark.parametrize(
    "rest",
    [
        "", ".", "**.", " apples", " red apples in total.", " box",
        " because 6 * 6 = 36",
        ", since there are 6 rows", " which is 6 squared",
        ". This is 6 times 6", "; that is all", ", where x is 6", ", as required", " kg",
        " (six rows of six)", ", not 35", " - the apples in all boxes", ", clearly",
    ],
)  # fmt: skip
def test_these_leave_it_as_it_is(rest: str) -> None:
    assert may_follow(rest, QUESTION)


@pytest.mark.parametrize(
    "rest",
    [
        " minus one", " doubled", " over seven", " squared",
        ", doubled", " (halved)", " six", ", plus one", " + 1", "/2",
        " pears", " apples and pears", "apples", " red apples boxes rows", " or 37", ", and 37", " (base eight)",
        " (1 + 2)",
    ],
)  # fmt: skip
def test_these_may_change_it(rest: str) -> None:
    assert not may_follow(rest, QUESTION)


def test_without_a_prompt_all_words_but_operations_may_follow() -> None:
    assert may_follow(" pears", None) and not may_follow(" pears doubled", None)
