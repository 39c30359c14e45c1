"""Safe output: no character of a foreign text acts on the terminal, and no secret is shown.

Texts from models, data, endpoints and templates may contain terminal codes (OSC 52 writes the clipboard), control
characters, marks that reverse a line's direction, and lone surrogates. The streams escape them, so that no `print`
needs to.
"""

from __future__ import annotations

import atexit
import contextlib
import os
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
"""Control characters except line ends and tabs, direction marks, Unicode line ends, and lone surrogates."""
_UP: Final = re.compile(r"(\x1b\[A)+")
"""tqdm's sequence when it leaves a bar below another one."""


def escaped(text: str) -> str:
    """Return the text with active characters escaped as in Python, and CRLF as line end."""
    return ACTIVE.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """Return a JSON document with active characters as JSON escapes. Its meaning is unchanged."""
    return ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def visible(text: str) -> str:
    """Return the text with active characters as code points, for a page: `⟨U+202E⟩`."""
    return ACTIVE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text.replace("\r\n", "\n"))


class Coded(str):
    """A text with our own terminal codes. Foreign parts in it are already escaped."""


def in_red(text: str, start: str) -> str:
    """Return a text whose start is red if stderr is a terminal that shows colours (NO_COLOR, TERM=dumb: none)."""
    plain = not sys.stderr.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    if plain or not text.startswith(start):
        return text
    return Coded(f"\x1b[1;31m{start}\x1b[0m{escaped(text[len(start) :])}")


class SafeStream:
    """A text stream that escapes active characters and hides secrets, even when printed in pieces.

    A text may start with a carriage return to redraw a line, as progress bars do.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._secrets = stream, HeldBack()
        self._at_start, self._redrawn = True, False
        self._lock, self._copies = threading.RLock(), list[Callable[[str], object]]()

    def write(self, text: str) -> int:
        """Write the text safely. Return its length."""
        with self._lock:
            self._show(self._noted(text) if isinstance(text, Coded) else self._safe(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write the texts safely."""
        for text in texts:
            self.write(text)

    def finish(self) -> None:
        """Write the text that was held back because it might start a secret."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._show(escaped(self._secrets.rest()))
            self._stream.flush()

    def close(self) -> None:
        """Do nothing: other code also prints to this stream."""
        self.finish()

    def copy_to(self, write: Callable[[str], object]) -> None:
        """Pass all text that is written from now on to `write`, made safe."""
        self._copies.append(write)

    def renew(self, stream: TextIO) -> None:
        """Use another stream from now on."""
        self._stream = stream

    def _safe(self, text: str) -> str:
        """Return the safe form of a text that may be foreign."""
        if self._redrawn and _UP.fullmatch(text):
            return text
        shown = self._secrets.feed(text)
        if shown.startswith("\r") and (self._at_start or self._redrawn):
            return self._noted("\r" + escaped(shown[1:]))
        return self._noted(escaped(shown))

    def _noted(self, text: str) -> str:
        """Record whether the text's last line is empty, and whether it started with a carriage return."""
        _, newline, line = text.rpartition("\n")
        begins = bool(newline) or self._at_start
        self._redrawn = line.startswith("\r") if begins else self._redrawn
        self._at_start = begins and not line
        return text

    def _show(self, text: str) -> None:
        """Write to the stream. Characters that its encoding lacks are escaped."""
        for write in self._copies:
            write(text)
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)


def make_streams_safe() -> None:
    """Make sys.stdout and sys.stderr safe. Only the first call has an effect."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            safe = SafeStream(stream)
            setattr(sys, name, safe)
            atexit.register(safe.finish)
    _leave_streams_alone()


def finish_streams() -> None:
    """Flush the streams before a process exits without Python's cleanup."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, SafeStream):
            stream.finish()
        elif stream is not None:
            stream.flush()


def _leave_streams_alone() -> None:
    """Keep DVC from wrapping the streams with colorama, which on Linux only removes codes or fails."""
    with contextlib.suppress(ImportError):
        vars(import_module("colorama"))["init"] = lambda *_, **__: None
