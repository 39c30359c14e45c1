"""The reward `language` by a detector, the extra `languages`."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import pytest

from posttrain.errors import ParamsError, RewardError
from posttrain.rewards.detector import SHORTEST, _detector, _passages, _size
from posttrain.rewards.language import LanguageOptions, in_language
from posttrain.rewards.reward import Context
from posttrain.rollout import Score
from posttrain.settings.params import check
from tests.library.models.tiny import rollout_of

ENGLISH = "First we add the two numbers, and then we divide the sum by three."
FRENCH = "D'abord nous ajoutons les deux nombres, puis nous divisons la somme par trois."
needs_package = pytest.mark.skipif(find_spec("py3langid") is None, reason="the extra `languages` is not installed")


def scores(language: str, *texts: str) -> list[Score | float]:
    score_fn = in_language.score_fn(LanguageOptions(detect=language), Context(None, "x"))
    return list(score_fn([rollout_of(text) for text in texts]))


@needs_package
def test_languages_of_one_script_are_told_apart() -> None:
    texts = (
        ENGLISH,
        FRENCH,
        "Сначала мы сложим два числа, а затем разделим сумму на три.",
        "我们先把两个数相加，然后除以三。",
    )
    for language, right in zip(("en", "fr", "ru", "zh"), texts, strict=True):
        assert [one.value for one in scores(language, *texts) if isinstance(one, Score)] == [
            float(text == right) for text in texts
        ]


@needs_package
def test_a_mixed_text_has_the_share_of_its_letters() -> None:
    (mixed,) = scores("fr", f"{ENGLISH}\n{FRENCH}")
    assert isinstance(mixed, Score)
    assert mixed.value == pytest.approx(_size(FRENCH) / (_size(FRENCH) + _size(ENGLISH)))
    (code,) = scores("fr", f"{FRENCH}\n```python\n{ENGLISH}\n```")
    assert isinstance(code, Score) and code.value == 1.0, "code does not count"


@needs_package
def test_an_unknown_language_ends_the_run() -> None:
    with pytest.raises(RewardError, match=r"py3langid does not support 'xx'.*Give an ISO 639 code"):
        scores("xx", ENGLISH)


def test_short_sentences_go_with_others() -> None:
    passages = _passages(f"Yes. {ENGLISH} Ok. {FRENCH} No!")
    assert passages == [f"Yes. {ENGLISH}", f" Ok. {FRENCH} No!"]
    assert all(_size(passage) >= SHORTEST for passage in passages)
    for text in ("", "18", "#### 18", "Yes.", "x = 1, y = 2"):
        (short,) = scores("en", text)
        assert isinstance(short, Score) and (short.value, short.status) == (0.0, "unparseable")


@pytest.mark.parametrize("piece", ["1.", "a.", "\n", "word ", "e", "。"])
def test_long_texts_are_split_in_time(piece: str) -> None:
    """100,000 characters."""
    began = time.process_time()
    _passages(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 3


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _detector.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(RewardError, match=r"py3langid is not installed.*Install the extra `languages`"):
        scores("en", ENGLISH)


@pytest.mark.parametrize("options", [{}, {"script": "latin", "detect": "fr"}, {"detect": "french"}, {"detect": ""}])
def test_wrong_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ParamsError, match=r"give either script|detect"):
        check(LanguageOptions, options, where="language")
