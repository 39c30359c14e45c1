"""Hostile texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "OSC 52": "\x1b]52;c;aGFja2Vk\x07",
    "OSC of another kind": "\x1b]abc;title\x07",
    "OSC 8": "\x1b]8;;http://127.0.0.1/\x1b\\link\x1b]8;;\x1b\\",
    "CSI": "\x1b[2J\x1b[1;1H\x1b[8mhidden\x1b[0m",
    "C1": "\x9d52;c;aGFja2Vk\x9c\x9b2J",
    "carriage return": "bad\rgood\x1b[K",
    "backspace": "no\x08\x08ok\x7f",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
    "surrogate": "half \ud83d of a pair \udcff",
    "null": "a\x00b",
    "Unicode line ends": "a\u2028b\u2029c\x85d\x0be\x0cf",
}
"""What a terminal executes, hides, reverses or cannot print."""
