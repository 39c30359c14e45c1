"""The share of a text in its target script."""

from __future__ import annotations

import pytest

from posttrain.rewards.language import LanguageOptions, in_language
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of


def share(text: str, *script: str) -> Score:
    assert in_language.each is not None
    found = in_language.each(rollout_of(text), LanguageOptions(script=script))
    assert isinstance(found, Score)
    return found


def test_the_share_counts_words_by_their_letters() -> None:
    assert share("two words", "latin") == Score(1.0)
    assert share("two слова", "latin") == Score(0.5)
    assert share("two слова", "cyrillic") == Score(0.5)
    assert share("两个", "han") == Score(1.0)


def test_text_without_words_has_no_language() -> None:
    assert share("x = 12", "latin") == Score(0.0, "unparseable", "it has no words")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": ["elvish"]}, "'elvish' is not a supported script"),
        ({}, "give either"),
        ({"script": []}, "script is empty"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageOptions.model_validate(options)


def test_a_script_may_be_one_name() -> None:
    assert LanguageOptions.model_validate({"script": "han"}).script == ("han",)
    assert LanguageOptions.model_validate({"script": ["han", "latin"]}).script == ("han", "latin")
