"""Types of command-line arguments: numbers, times and schedules, checked by argparse."""

from __future__ import annotations

import math
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from typing import Any, Final

from posttrain.errors import ParamsError

_CRON = "Write one like '0 3 * * *'"


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Return integers separated by commas, for seeds."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ArgumentTypeError("it is empty. Give numbers like 1,2,3, or leave the option out")
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"'{text}' are not whole numbers. Write them like 1,2,3")
    if len({*map(int, parts)}) < len(parts):
        raise ArgumentTypeError(f"'{text}' has a number twice. Give each once")
    return [int(part) for part in parts]


def names(text: str) -> list[str]:
    """Return names separated by commas."""
    if not (parts := [part.strip() for part in text.split(",") if part.strip()]):
        raise ArgumentTypeError("it is empty. Give a name, or leave the option out")
    return parts


class Once(Action):
    """An option that may be given once, because its second value would silently replace the first."""

    def __call__(self, parser: ArgumentParser, options: Namespace, value: Any, option: str | None = None) -> None:
        """Store the value."""
        if getattr(options, self.dest):
            parser.error(f"{option} is given twice. Give all values at once, separated by commas")
        setattr(options, self.dest, value)


NUMBERS: Final[dict[str, Any]] = {"type": counts, "action": Once, "default": [], "metavar": "N,N"}
NAMES: Final[dict[str, Any]] = {"type": names, "action": Once, "default": []}
"""What `add_argument` needs for an option with several numbers or names, given once."""


def seconds(text: str) -> float:
    """Return a finite number of seconds >= 1. Smaller numbers are probably typing errors."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise ArgumentTypeError(f"'{text}' is not a number of seconds of at least 1")
    return value


def cron(text: str) -> str:
    """Check the form of a cron schedule. `check_schedule` checks the rest.

    It does not import Prefect, which reads PREFECT_API_URL on import and would start its own server without a login.
    """
    if len(text.split()) not in (5, 6) and not text.startswith("@"):
        raise ArgumentTypeError(f"'{text}' is not a schedule. {_CRON}")
    return text


def check_schedule(cron: str | None, rrule: str | None) -> None:
    """Reject a schedule that Prefect cannot read. Call it after Prefect's environment is set."""
    from prefect.client.schemas.schedules import CronSchedule, RRuleSchedule

    try:
        CronSchedule(cron=cron or "@daily")
    except ValueError as error:
        raise ParamsError(what=f"'{cron}' is not a schedule", where="--cron", fix=_CRON) from error
    try:
        RRuleSchedule(rrule=rrule or "FREQ=DAILY")
    except ValueError as error:
        fix = "Use e.g. 'FREQ=WEEKLY;BYDAY=MO;BYHOUR=3;BYMINUTE=0'"
        raise ParamsError(what=f"'{rrule}' is not a schedule", where="--rrule", fix=fix) from error
