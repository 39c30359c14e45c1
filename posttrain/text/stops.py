"""What ends a completion: tokens, and strings in its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]

MARGIN = 8
"""Tokens before the longest match: a cut character, or tokens without text of their own."""


@dataclass(frozen=True)
class Stops:
    """The tokens that end a completion, and how tokens become the text that stop strings are looked for in."""

    tokens: tuple[int, ...]
    decode: Decode


class StopStrings:
    """Looks for strings at the end of a growing text, in as few tokens as can hold one."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        self._strings, self._decode = tuple(strings), decode
        self._tail = MARGIN + max((len(one.encode()) for one in strings), default=0)

    def end(self, ids: Sequence[int], new: int) -> int | None:
        """How many ids there are once a string is complete; all but the last `new` have been looked at."""
        if not self._strings or not self._within(ids, len(ids) - new, len(ids)):
            return None
        known = len(ids) - new
        return next((end for end in range(known + 1, len(ids) + 1) if self._within(ids, end - 1, end)), None)

    def _within(self, ids: Sequence[int], known: int, end: int) -> bool:
        text = self._decode(ids[max(known - self._tail, 0) : end])
        return any(one in text for one in self._strings)
