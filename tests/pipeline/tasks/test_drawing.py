"""Different problems of a split."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.toy_tasks.drawing import draw_problems, problem_split, too_few


@dataclass(frozen=True)
class Number:
    key: str


def draw(rng: random.Random) -> Number:
    return Number(str(rng.randint(1, 50)))


def test_problems_are_different_and_of_their_split() -> None:
    found = draw_problems(draw, 0, "chat", "train", 20)
    assert len({one.key for one in found}) == 20 and {problem_split(one.key) for one in found} == {"train"}
    assert found == draw_problems(draw, 0, "chat", "train", 20) != draw_problems(draw, 1, "chat", "train", 20)


def test_too_few() -> None:
    assert isinstance(too_few("none"), ParamsError) and too_few("none").what == "none"
    with pytest.raises(ParamsError, match="different train problems exist for `chat`, not 60"):
        draw_problems(draw, 0, "chat", "train", 60)
