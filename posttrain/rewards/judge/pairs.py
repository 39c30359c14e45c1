"""Pairs of replies that the judge compares, and who won."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.rewards.judge.texts import said
from posttrain.rewards.judge.verdicts import Verdict, first_failure
from posttrain.rollout import Rollout, Score


@dataclass(frozen=True)
class Duel:
    """Two completions to compare, as indices of rollouts; None stands for the prompt's answer."""

    first: int
    second: int | None
    texts: tuple[str, str]


def duels_of(rollouts: Sequence[Rollout], against: Literal["group", "answer"]) -> list[Duel]:
    """Return duels of each rollout with its prompt's answer, or with the next rollout of its group (a ring)."""
    if against == "answer":
        return [Duel(place, None, (said(rollout), rollout.prompt.answer)) for place, rollout in enumerate(rollouts)]
    groups: dict[str, list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        groups[rollout.prompt.id].append(place)
    pairs = [
        (place, group[(index + 1) % len(group)])
        for group in groups.values()
        for index, place in enumerate(group[: len(group) if len(group) > 2 else len(group) - 1])
    ]
    return [Duel(first, second, (said(rollouts[first]), said(rollouts[second]))) for first, second in pairs]


def won(verdicts: Sequence[Verdict]) -> Verdict:
    """Return 1, 0, or 0.5 if the verdict depends on the order. No verdicts mean equal texts: a tie."""
    failed = first_failure(verdicts)
    if failed is not None:
        return failed
    if not verdicts:
        return 0.5
    forth, back = (verdict for verdict in verdicts if not isinstance(verdict, Score))
    return forth if forth == 1 - back else 0.5


def first_slot(verdicts: Sequence[Verdict]) -> float | None:
    """Return how often the first shown reply won, over both orders: 1/2 for a judge that ignores the order.

    None: the judge was not asked, or gave no verdict.
    """
    numbers = [verdict for verdict in verdicts if not isinstance(verdict, Score)]
    return sum(numbers) / len(numbers) if len(numbers) == 2 else None
