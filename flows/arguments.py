"""Words of the command line as numbers, refused by argparse where they are none."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Whole numbers set apart by commas, for seeds."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"'{text}' are no whole numbers. Write them like 1,2,3")
    return [int(part) for part in parts]


def seconds(text: str) -> float:
    """A finite time, a second or more: a run in less would be a slip."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 1):
        raise ArgumentTypeError(f"'{text}' is no number of seconds of at least 1")
    return found


def cron(text: str) -> str:
    """A schedule as cron writes it."""
    from prefect.client.schemas.schedules import CronSchedule  # late, because it is slow to import

    try:
        CronSchedule(cron=text)
    except ValueError as error:
        raise ArgumentTypeError(f"'{text}' is no schedule. Write one like '0 3 * * *'") from error
    return text
