"""The form of a completion: a final number, tags or a pattern."""

from __future__ import annotations

import pytest

from posttrain.rewards.format import FormatOptions, as_tuple, well_formed
from posttrain.rollout import Prompt, Score
from tests.library.models.tiny import rollout_of


def score(text: str, *, truncated: bool = False, **options: object) -> Score:
    assert well_formed.each is not None
    found = well_formed.each(rollout_of(text, truncated=truncated), FormatOptions.model_validate(options))
    assert isinstance(found, Score)
    return found


def test_as_tuple() -> None:
    assert as_tuple(["a", "b"]) == ("a", "b") and as_tuple("a") == "a"


@pytest.mark.parametrize(
    ("text", "options", "value", "reason"),
    [
        ("It is 7", {}, 1, ""),
        ("#### 7", {"after": "####"}, 1, ""),
        ("#### 6 #### 7", {"after": "####"}, 0, "`####` is there 2 times"),
        ("<a>x</a> <b>y</b>\n", {"tags": ["a", "b"]}, 1, ""),
        ("<b>y</b><a>x</a>", {"tags": ["a", "b"]}, 0, "its tags are <b> </b> <a> </a>, not <a> </a> <b> </b>"),
        ("x", {"tags": ["a"]}, 0, "its tags are missing, not <a> </a>"),
        ("<a>x</a> y", {"tags": ["a"]}, 0, "there is text outside of its tags"),
        ("<a> \u200b</a>", {"tags": ["a"]}, 0, "a part is empty"),
        ("<a>\u2800\u3164</a>", {"tags": ["a"]}, 0, "a part is empty"),
        ("<a></a>", {"tags": ["a"], "empty": "allow"}, 1, ""),
        ("ab", {"template": "a.*"}, 1, ""),
        ("ba", {"template": "a.*"}, 0, "it does not match the template"),
    ],
)
def test_well_formed(text: str, options: dict[str, object], value: float, reason: str) -> None:
    found = score(text, **options)
    assert (found.value, found.status, found.reason) == (value, "ok", reason)


def test_a_truncated_text_and_one_without_a_number_are_not_well_formed() -> None:
    assert score("It is 7", truncated=True) == Score(0.0, reason="it is truncated")
    assert score("seven").status == "unparseable"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ["a", "A"]}, "tags must be different names"),
        ({"tags": ["a"], "template": "a"}, "exclude each other"),
        ({"empty": "allow"}, "only works with tags"),
        ({"template": "("}, "not a regular expression"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FormatOptions.model_validate(options)


def test_the_examples_score_as_they_must() -> None:
    prompt = Prompt("p", [], [])
    for given in ({}, {"after": "####"}, {"tags": ["think", "answer"]}):
        examples = well_formed.examples(prompt, FormatOptions.model_validate(given))
        assert examples.right and [score(text, **given).value for text in examples.right] == [1.0]
        assert examples.wrong and not any(score(text, **given).value for text in examples.wrong)
    assert well_formed.examples(prompt, FormatOptions(template="a")).right == ()
