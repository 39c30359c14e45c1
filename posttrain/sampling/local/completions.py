"""Completions as they grow, on the host: each cut where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.text.stops import Stops, StopStrings


class CompletionBuffer:
    """The tokens and log-probs of each completion so far, and whether it has ended."""

    def __init__(self, count: int, longest: int, stop: Stops, strings: Sequence[str]) -> None:
        self.ids: list[list[int]] = [[] for _ in range(count)]
        self.logps: list[list[float]] = [[] for _ in range(count)]
        self.ended, self.truncated = [False] * count, [False] * count
        self._longest, self._tokens = longest, frozenset(stop.tokens)
        self._strings = StopStrings(strings, stop.decode)

    def add(self, number: int, ids: Sequence[int], logps: Sequence[float]) -> None:
        """Append to a completion; what follows its end is noise."""
        if self.ended[number]:
            return
        mine = self.ids[number]
        before = len(mine)
        mine.extend(ids)
        end = self._end(mine, before)
        self.truncated[number] = end is None and len(mine) >= self._longest
        self.ended[number] = end is not None or self.truncated[number]
        if end is not None:
            del mine[end:]
        self.logps[number].extend(logps[: len(mine) - before])

    def _end(self, ids: list[int], before: int) -> int | None:
        by_token = next((i + 1 for i in range(before, len(ids)) if ids[i] in self._tokens), None)
        by_string = self._strings.end(ids, len(ids) - before)
        return min((end for end in (by_token, by_string) if end is not None), default=None)
