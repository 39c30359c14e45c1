"""Different problems of a split, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from posttrain.data.columns import Kind, Split
from posttrain.data.splits import split_of
from posttrain.errors import ParamsError
from posttrain.settings.host import HOST

HELDOUT_SHARE, TEST_SHARE = 0.1, 0.2
"""Shares of all problems; a hash of the problem decides its split, whatever the seed."""
TRIES: Final = 2_000
"""Draws in a row without a new problem of the split. After more, no other is expected to exist."""


class Keyed(Protocol):
    """Problems with the same key are the same."""

    @property
    def key(self) -> str:
        """The problem as text."""


P = TypeVar("P", bound=Keyed)


def problem_split(key: str) -> Split:
    """Return the split of a problem."""
    return split_of(key, heldout_share=HELDOUT_SHARE, test_share=TEST_SHARE)


def draw_problems(draw: Callable[[random.Random], P], seed: int, kind: Kind, split: Split, size: int) -> list[P]:
    """Return different problems of a split. Each table and split has its own random stream."""
    rng = random.Random(f"{seed}:{kind}:{split}")
    problems: dict[str, P] = {}
    tries = 0
    while len(problems) < size:
        problem = draw(rng)
        new = problem_split(problem.key) == split and problem.key not in problems
        tries = 0 if new else tries + 1
        if new:
            problems[problem.key] = problem
        if tries > TRIES:
            raise too_few(f"only about {len(problems):,} different {split} problems exist for `{kind}`, not {size:,}")
    return list(problems.values())


def too_few(what: str) -> ParamsError:
    """Return the error of a generator that has no more rows to draw."""
    return ParamsError(what=what, where=HOST.settings_file, fix="Raise largest, or ask for fewer rows")
