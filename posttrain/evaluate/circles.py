"""Circles of policies that beat each other (a beats b, b beats c, c beats a), which no rating can show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from posttrain.evaluate.pairwise import Pair

Circle = tuple[str, ...]
"""Each policy beats the next one, and the last one the first."""


def circles(wins: Mapping[Pair, float]) -> list[Circle]:
    """Return the shortest circle through each win, each circle once. `wins`: the first policy's win rate; 1/2 is a tie.

    Every policy that is part of any circle is in one of these. A circle starts with the label that is first in the
    alphabet.
    """
    beaten: dict[str, list[str]] = {}
    for (first, second), win in wins.items():
        if win != 0.5:
            winner, loser = (first, second) if win > 0.5 else (second, first)
            beaten.setdefault(winner, []).append(loser)
    shortest = {
        _turned(path) for winner, losers in beaten.items() for loser in losers if (path := _way(loser, winner, beaten))
    }
    return sorted(shortest, key=lambda circle: (len(circle), circle))


def is_clear(circle: Circle, clear: Collection[Pair]) -> bool:
    """Tell whether every win of a circle is clear. `clear`: (winner, loser)."""
    return all((one, circle[(index + 1) % len(circle)]) in clear for index, one in enumerate(circle))


def _way(start: str, end: str, beaten: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return the shortest chain of wins from one policy to another."""
    chains = [[start]]
    known = {start}
    while chains:
        longer = []
        for chain in chains:
            if chain[-1] == end:
                return chain
            fresh = [loser for loser in sorted(beaten.get(chain[-1], ())) if loser not in known]
            known.update(fresh)
            longer += [[*chain, loser] for loser in fresh]
        chains = longer
    return None


def _turned(chain: Sequence[str]) -> Circle:
    """Return a circle from the label that is first in the alphabet on."""
    first = chain.index(min(chain))
    return (*chain[first:], *chain[:first])
