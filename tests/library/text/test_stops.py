"""Stop strings in a growing completion."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.text.stops import StopStrings


def decode(ids: Sequence[int]) -> str:
    return "".join(chr(number) for number in ids)


def test_end() -> None:
    stops = StopStrings(["END", "!"], decode)
    text = [ord(char) for char in "some END here"]
    assert stops.end(text, len(text)) == 8 and stops.end(text[:7], 7) is None
    assert stops.end(text[:8], 1) == 8 and stops.end([ord("!")], 1) == 1
    assert StopStrings([], decode).end(text, len(text)) is None
