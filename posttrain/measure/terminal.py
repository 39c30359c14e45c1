"""What this project prints: no character of a foreign text acts on the terminal, and no secret is in it.

Texts of models, data, endpoints and templates may hold terminal codes (OSC 52 writes the clipboard), controls, marks
that reverse the direction of a line, and lone surrogates. They are escaped in the streams, so that no `print` needs to.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, TextIO

from posttrain.measure.masking import HeldBack

ACTIVE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but for line ends and tabs, marks of direction, line ends of Unicode, and lone surrogates."""
_UP: Final = re.compile(r"(\x1b\[A)+")
"""How tqdm leaves a bar below another one."""


def escaped(text: str) -> str:
    """Return the text with its active characters as Python escapes them, and CRLF as a line end."""
    return ACTIVE.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """Return a JSON document whose active characters are JSON's escapes, so that it says the same."""
    return ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def visible(text: str) -> str:
    """Return the text with its active characters by their numbers, as a page shows them: `⟨U+202E⟩`."""
    return ACTIVE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


class Coded(str):
    """A text with terminal codes of our own; what is not ours in it is escaped already."""


class SafeStream:
    """A text stream in which active characters are escaped and secrets are hidden, also those printed in pieces.

    A text may begin with a carriage return where it redraws a line that began with one, as progress bars do.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._secrets = stream, HeldBack()
        self._at_start, self._redrawn = True, False
        self._lock, self._copies = threading.RLock(), list[Callable[[str], object]]()

    def write(self, text: str) -> int:
        """Write the text, safe; how much was taken."""
        with self._lock:
            self._show(self._noted(text) if isinstance(text, Coded) else self._safe(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write the texts, safe."""
        for text in texts:
            self.write(text)

    def finish(self) -> None:
        """Write what was held back because it may have been the beginning of a secret."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._show(escaped(self._secrets.rest()))
            self._stream.flush()

    def close(self) -> None:
        """Stay open: others print here too."""
        self.finish()

    def copy_to(self, write: Callable[[str], object]) -> None:
        """Give `write` all that is written from now on, safe too."""
        self._copies.append(write)

    def renew(self, stream: TextIO) -> None:
        """Write to another stream from now on."""
        self._stream = stream

    def _safe(self, text: str) -> str:
        """Return what can be shown of a text that may be foreign."""
        if self._redrawn and _UP.fullmatch(text):
            return text
        shown = self._secrets.feed(text)
        if shown.startswith("\r") and (self._at_start or self._redrawn):
            return self._noted("\r" + escaped(shown[1:]))
        return self._noted(escaped(shown))

    def _noted(self, text: str) -> str:
        """Note whether the line that the text ends in is empty, and whether it began with a carriage return."""
        _, newline, line = text.rpartition("\n")
        begins = bool(newline) or self._at_start
        self._redrawn = line.startswith("\r") if begins else self._redrawn
        self._at_start = begins and not line
        return text

    def _show(self, text: str) -> None:
        """Write to the stream, with escapes for what its encoding does not have."""
        for write in self._copies:
            write(text)
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def __getattr__(self, name: str) -> Any:
        """Return what else streams have: that of the stream."""
        return getattr(self._stream, name)


def make_streams_safe() -> None:
    """Make sys.stdout and sys.stderr safe, once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            safe = SafeStream(stream)
            setattr(sys, name, safe)
            atexit.register(safe.finish)
    _leave_streams_alone()


def finish_streams() -> None:
    """Write what the streams still hold, before a process ends without Python's own way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, SafeStream):
            stream.finish()
        elif stream is not None:
            stream.flush()


def _leave_streams_alone() -> None:
    """Keep DVC from wrapping the streams in colorama's, which on Linux do nothing but remove codes, or fail at them."""
    with contextlib.suppress(ImportError):
        vars(import_module("colorama"))["init"] = lambda *_, **__: None
