"""Which replies a judge compares, and who won."""

from __future__ import annotations

from dataclasses import replace

from posttrain.rewards.judge.pairs import Duel, duels_of, first_slot, won
from posttrain.rollout import Prompt, Rollout, Score
from tests.library.models.tiny import rollout_of


def of(prompt: str, text: str) -> Rollout:
    return replace(rollout_of(text), prompt=Prompt(prompt, [], [], answer="gold"))


def test_duels_with_the_answer() -> None:
    assert duels_of([of("p", "x")], "answer") == [Duel(0, None, ("x", "gold"))]


def test_duels_of_a_group_are_a_ring() -> None:
    found = duels_of([of("p", "x"), of("q", "1"), of("p", "y"), of("p", "z"), of("q", "2")], "group")
    assert [(duel.first, duel.second) for duel in found] == [(0, 2), (2, 3), (3, 0), (1, 4)]
    assert found[3].texts == ("1", "2")


def test_won_asks_both_orders() -> None:
    assert [won([1.0, 0.0]), won([0.0, 1.0]), won([1.0, 1.0]), won([])] == [1.0, 0.0, 0.5, 0.5]
    failed = Score(0.0, "timeout", "late")
    assert won([1.0, failed]) == failed


def test_how_often_the_first_slot_won() -> None:
    assert [first_slot([1.0, 0.0]), first_slot([1.0, 1.0]), first_slot([0.0, 0.0]), first_slot([0.5, 1.0])] == [
        0.5, 1.0, 0.0, 0.75,
    ]  # fmt: skip
    assert first_slot([]) is None and first_slot([1.0, Score(0.0, "timeout")]) is None
