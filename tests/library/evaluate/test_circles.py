"""Circles of policies that beat each other."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np

from posttrain.evaluate.circles import circles, is_clear


def test_a_circle_is_found_once_whatever_its_order() -> None:
    wins = {("b", "c"): 0.6, ("a", "b"): 0.7, ("a", "c"): 0.4}
    assert circles(wins) == [("a", "b", "c")]
    assert circles({(second, first): 1 - win for (first, second), win in wins.items()}) == [("a", "b", "c")]
    assert circles({**wins, ("a", "c"): 0.6}) == [], "they are in order"
    assert circles({**wins, ("a", "c"): 0.5}) == [], "a tie beats nobody"


def test_a_circle_of_four_whose_diagonals_are_ties() -> None:
    wins = {("a", "b"): 1.0, ("b", "c"): 1.0, ("c", "d"): 1.0, ("d", "a"): 1.0, ("a", "c"): 0.5, ("b", "d"): 0.5}
    assert circles(wins) == [("a", "b", "c", "d")]


def test_policies_that_meet_one_other_alone_have_none() -> None:
    assert circles({("a", "base"): 0.7, ("b", "base"): 0.2}) == []


def test_every_policy_of_any_circle_is_named() -> None:
    """Against all circles of three of random matches: each policy of one is in a circle that is found."""
    rng, labels = np.random.default_rng(2), "abcdef"
    for _ in range(50):
        wins = {pair: float(rng.choice([0.2, 0.8])) for pair in combinations(labels, 2)}
        beats = {pair if win > 0.5 else pair[::-1] for pair, win in wins.items()}
        threes = [
            three for three in permutations(labels, 3) if {*zip(three, [*three[1:], three[0]], strict=True)} <= beats
        ]
        found = circles(wins)
        assert {label for three in threes for label in three} == {label for circle in found for label in circle}
        assert all({*zip(one, [*one[1:], one[0]], strict=True)} <= beats for one in found)


def test_a_circle_is_clear_if_each_of_its_wins_is() -> None:
    assert is_clear(("a", "b", "c"), {("a", "b"), ("b", "c"), ("c", "a")})
    assert not is_clear(("a", "b", "c"), {("a", "b"), ("b", "c"), ("a", "c")})
