"""Hides the values of secret environment variables in what stages print, store and raise."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from posttrain.settings.host import HOST

SECRET: Final = re.compile(
    r"(^|_)(API_?)?(KEY|TOKEN|SECRET(_KEY|_ACCESS_KEY)?|CREDENTIALS?|PASS|PASSPHRASE|PAT|AUTH|AUTH_STRING|COOKIE"
    r"|WEBHOOK(_URL)?|DATABASE_URL|DB_URL|DSN|CONNECTION_STRING)$|(PASSWORD|PASSWD)$|.(PWD|APIKEY)$",
    re.IGNORECASE,
)
"""Names of variables that hold secrets, as HF_TOKEN, OPENAI_KEY, PGPASSWORD, MYSQL_PWD and DATABASE_URL."""
NOT_SECRET: Final = frozenset({"OLDPWD"})
SHORTEST: Final = 8
"""A shorter value could be any word of a log."""
HIDDEN: Final = "***"


class _Known(NamedTuple):
    """The values to hide, the longest first, as one may begin another; and a pattern of all."""

    values: Sequence[str]
    pattern: re.Pattern[str]


def masked(text: str) -> str:
    """Return the text without the values of variables that the settings name, or whose names are those of secrets."""
    return known.pattern.sub(HIDDEN, text) if (known := _secrets()) else text


@cache
def _secrets() -> _Known | None:
    """The secrets as they are when the first text is written; of one with several lines also each line."""
    found = {part for value in secret_variables(os.environ).values() for part in _parts(value)}
    values = sorted((part for part in found if len(part) >= SHORTEST), key=len, reverse=True)
    return _Known(values, re.compile("|".join(map(re.escape, values)))) if values else None


def secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values are secrets: by name, named in the settings, or a URL with a login."""
    named = set(HOST.secret_names())
    return {name: value for name, value in environment.items() if is_secret(name, value) or name in named}


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret by its name, or by a password in its URL."""
    return bool(SECRET.search(name) and name not in NOT_SECRET) or bool(_password(value))


def _parts(value: str) -> Iterator[str]:
    yield value.strip()
    yield from map(str.strip, value.splitlines())
    if password := _password(value):
        yield from {password, unquote(password)}


def _password(value: str) -> str | None:
    """Return the password in a URL."""
    if "://" not in value or "@" not in value:
        return None
    try:
        return urlsplit(value.strip()).password
    except ValueError:
        return None


class HeldBack:
    """Hides secrets in a text that comes in pieces: the end that may begin one is held back until more comes."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown now."""
        known, text = _secrets(), self._held + piece
        if known is None:
            return text
        cut = len(text) - max(_begun(text, value) for value in known.values)
        for match in known.pattern.finditer(text):
            if match.start() < cut < match.end():
                cut = match.end()
        self._held = text[cut:]
        return masked(text[:cut])

    def rest(self) -> str:
        """Return what was held back."""
        rest, self._held = self._held, ""
        return masked(rest)


def _begun(text: str, value: str) -> int:
    """Return how many characters at the end of a text are the beginning of a value, but not all of it."""
    if text[-1:] not in value:
        return 0
    return next((size for size in range(min(len(value) - 1, len(text)), 0, -1) if text.endswith(value[:size])), 0)
