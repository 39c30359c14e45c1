"""Hide the values of secret environment variables in the output, files and errors of stages."""

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
"""Names of secret variables, e.g. HF_TOKEN, OPENAI_KEY, PGPASSWORD, MYSQL_PWD and DATABASE_URL."""
NOT_SECRET: Final = frozenset({"OLDPWD"})
SHORTEST: Final = 8
"""Shorter values are not hidden, because they could be any word in a log."""
HIDDEN: Final = "***"


class _Known(NamedTuple):
    """The values to hide, longest first because one may start with another; and a pattern for all."""

    values: Sequence[str]
    pattern: re.Pattern[str]


def masked(text: str) -> str:
    """Return the text without values of variables that the settings list or that have a secret's name."""
    return known.pattern.sub(HIDDEN, text) if (known := _secrets()) else text


@cache
def _secrets() -> _Known | None:
    """Return the secrets at the time of the first text. Each line of a multi-line secret counts separately."""
    parts = {part for value in secret_variables(os.environ).values() for part in _parts(value)}
    values = sorted((part for part in parts if len(part) >= SHORTEST), key=len, reverse=True)
    return _Known(values, re.compile("|".join(map(re.escape, values)))) if values else None


def secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secret variables: by name, listed in the settings, or a URL with a password."""
    named = set(HOST.secret_names())
    return {name: value for name, value in environment.items() if is_secret(name, value) or name in named}


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable is secret by its name or by a password in its URL."""
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
    """Hides secrets in a text that arrives in pieces. An end that may start a secret is held back."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text that can be shown now."""
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
        """Return the text that was held back."""
        rest, self._held = self._held, ""
        return masked(rest)


def _begun(text: str, value: str) -> int:
    """Return how many characters at the end of a text are an incomplete start of a value."""
    if text[-1:] not in value:
        return 0
    return next((size for size in range(min(len(value) - 1, len(text)), 0, -1) if text.endswith(value[:size])), 0)
