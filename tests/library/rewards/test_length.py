"""Length by hand: the target, the limit and the soft punishment of what is nearly too long."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from posttrain.rewards.length import NO_TOKENS, REWARDS, LengthOptions, completion_ids, of_length, soft_overlong
from posttrain.rewards.reward import Context
from posttrain.rollout import Rollout, Score, TokenRow
from tests.library.models.tiny import rollout_of


def with_tokens(count: int, mask: list[bool] | None = None) -> Rollout:
    return replace(rollout_of("one two three"), row=TokenRow([1], list(range(count)), mask))


def value(rollout: Rollout, **options: Any) -> Any:
    assert of_length.each is not None
    return of_length.each(rollout, LengthOptions(**options))


def test_completion_ids_are_those_of_the_last_turn() -> None:
    assert list(completion_ids(with_tokens(3))) == [0, 1, 2]
    assert list(completion_ids(with_tokens(4, [True, False, True, True]))) == [2, 3]
    assert list(completion_ids(with_tokens(2, [True, True]))) == [0, 1]


def test_soft_overlong() -> None:
    assert [soft_overlong(length, 100, 0.2) for length in (50, 80, 90, 100, 120)] == [0, 0, -0.5, -1, -1]


def test_scale() -> None:
    assert LengthOptions(limit=8).scale == (0, 8)
    assert LengthOptions(target=6).scale == (6, 6) and LengthOptions(target=6, width=2).scale == (6, 2)


def test_of_length() -> None:
    assert value(with_tokens(5), target=4, width=4) == Score(0.75)
    assert value(with_tokens(5), target=4, width=4, shape="cosine") == Score((1 + math.cos(math.pi / 4)) / 2)
    assert value(with_tokens(5), target=4, width=4, shape="step") == Score(1.0)
    assert value(with_tokens(9), target=4, width=4, shape="step") == Score(0.0)
    assert value(with_tokens(5), limit=6, unit="words") == Score(0.5)
    assert value(with_tokens(0), limit=6) == NO_TOKENS


def test_overlong() -> None:
    reward: Any = REWARDS["overlong"]
    options = reward.options()
    score = reward.score_fn(options, Context(None, "test", max_tokens=10))
    assert score([with_tokens(9), with_tokens(0)]) == [Score(-0.5), NO_TOKENS]
    with pytest.raises(ValueError, match="max_tokens is not known"):
        reward.score_fn(options, Context(None, "test"))


@pytest.mark.parametrize("options", [{}, {"target": 1, "limit": 2}, {"limit": 2, "width": 1}])
def test_options_that_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="target"):
        LengthOptions(**options)
