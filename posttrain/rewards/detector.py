"""Detect the language of a text with py3langid (BSD-3-Clause), an optional package that includes its model."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

import regex

from posttrain.errors import RewardError
from posttrain.settings.params import did_you_mean

INSTALL: Final = "Install the extra `languages`: python -m pip install -c constraints.txt py3langid"
SHORTEST: Final = 30
"""With fewer bytes of letters, the detector only guesses."""
_SENTENCES: Final = regex.compile(r"[^\n.!?。！？]+[\n.!?。！？]*")
_LETTERS: Final = regex.compile(r"\p{L}+")


def share_in(language: str, text: str) -> float | None:
    """Return the share of letters in passages of that language; None if there are too few letters."""
    passages = _passages(text)
    if not passages:
        return None
    detector = _detector(language)
    sizes = [_size(passage) for passage in passages]
    is_language = [detector.classify(passage)[0] == language for passage in passages]
    return sum(size for size, right in zip(sizes, is_language, strict=True) if right) / sum(sizes)


def _passages(text: str) -> list[str]:
    """Return the sentences. A short one is joined with the next, the last one with the one before."""
    passages: list[str] = []
    waiting: list[str] = []
    size = 0
    for sentence in _SENTENCES.findall(text):
        waiting.append(sentence)
        size += _size(sentence)
        if size >= SHORTEST:
            passages.append("".join(waiting))
            waiting, size = [], 0
    return [*passages[:-1], "".join([passages[-1], *waiting])] if passages else []


def _size(text: str) -> int:
    return sum(len(run.encode()) for run in _LETTERS.findall(text))


@cache
def _detector(language: str) -> Any:
    """Return the detector. Raise RewardError if it is not installed or does not support the language."""
    where = f"reward language: detect = {language}"
    try:
        langid = import_module("py3langid.langid")
    except ImportError as error:
        raise RewardError(what="the package py3langid is not installed", where=where, fix=INSTALL) from error
    detector = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)
    if language not in detector.labels:
        fix = f"Give an ISO 639 code that it supports. {did_you_mean(language, detector.labels)}"
        raise RewardError(what=f"py3langid does not support '{language}'", where=where, fix=fix)
    return detector
