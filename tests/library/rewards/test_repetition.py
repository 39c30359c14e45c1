"""The penalty on repeated n-grams by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from posttrain.rewards.length import NO_TOKENS
from posttrain.rewards.repetition import RepetitionOptions, repetition
from posttrain.rollout import Rollout, Score, TokenRow
from tests.library.models.tiny import rollout_of


def score(rollout: Rollout, **options: Any) -> Score:
    assert repetition.each is not None
    found = repetition.each(rollout, RepetitionOptions(**options))
    assert isinstance(found, Score)
    return found


def test_repetition() -> None:
    # a b a b a: four pairs, two of them distinct
    assert score(rollout_of("a b a B a"), n=2).value == -0.5
    assert score(rollout_of("a b a b a"), n=2, limit=0.25).value == pytest.approx(-0.25 / 0.75)
    assert score(rollout_of("a b c"), n=2).value == 0
    assert score(rollout_of("a"), n=2).value == 0


def test_tokens() -> None:
    given = replace(rollout_of("x"), row=TokenRow([1], [5, 5, 5]))
    assert score(given, n=1, unit="tokens").value == pytest.approx(-2 / 3)
    assert score(replace(given, row=TokenRow([1], [])), n=1, unit="tokens") == NO_TOKENS
