"""Stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]

MARGIN = 8
"""Extra tokens to decode beyond a match: for cut characters and tokens without text."""


@dataclass(frozen=True)
class Stops:
    """The tokens that end a completion, and the decoding in which stop strings are searched."""

    tokens: tuple[int, ...]
    decode: Decode


class StopStrings:
    """Searches a growing completion for stop strings. Only its last tokens are decoded."""

    def __init__(self, strings: Sequence[str], decode: Decode) -> None:
        self._strings, self._decode = tuple(strings), decode
        self._tail = MARGIN + max((len(string.encode()) for string in strings), default=0)

    def end(self, ids: Sequence[int], new: int) -> int | None:
        """Return the number of ids at which a stop string is complete. Only the last `new` ids are searched."""
        if not self._strings or not self._within(ids, len(ids) - new, len(ids)):
            return None
        known = len(ids) - new
        return next((end for end in range(known + 1, len(ids) + 1) if self._within(ids, end - 1, end)), None)

    def _within(self, ids: Sequence[int], known: int, end: int) -> bool:
        text = self._decode(ids[max(known - self._tail, 0) : end])
        return any(string in text for string in self._strings)
