"""Hides the values of secret environment variables in what stages print, store and raise."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TextIO

from posttrain.errors import ParamsError
from posttrain.params.formats import read_yaml, texts_in
from posttrain.workspace import PARAMS_FILE

SECRET: Final = re.compile(r"(^|_)(API_?KEY|TOKEN|SECRET(_KEY|_ACCESS_KEY)?|PASSWORD|PASSWD|CREDENTIALS)$")
"""Names of variables that hold secrets, as HF_TOKEN and OPENAI_API_KEY."""
SHORTEST: Final = 8
"""A shorter value could be any word of a log."""
HIDDEN: Final = "***"


def masked(text: str) -> str:
    """Return the text without the values of variables that params.yaml names, or whose names are those of secrets."""
    found = _secrets()
    return found.sub(HIDDEN, text) if found else text


@cache
def _secrets() -> re.Pattern[str] | None:
    """The values to hide, as they are when the first text is written; the longest first, as one may begin another."""
    named = set(_named())
    known = {value.strip() for name, value in os.environ.items() if name in named or SECRET.search(name)}
    values = sorted((value for value in known if len(value) >= SHORTEST), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, values))) if values else None


def _named() -> Iterator[str]:
    """Every text in params.yaml: the keys of judges name variables, and so may options of a user's own rewards."""
    try:
        yield from texts_in(read_yaml(PARAMS_FILE) if Path(PARAMS_FILE).is_file() else {})
    except ParamsError:  # reported by what needs the file
        return


class MaskedStream:
    """A text stream that hides secrets in what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without secrets; how much was taken."""
        self._stream.write(masked(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write the texts without secrets."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        """Return the other methods are those of the stream."""
        return getattr(self._stream, name)
