"""Types of command-line arguments: numbers, times and schedules, checked by argparse."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Whole numbers separated by commas, for seeds."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ArgumentTypeError(f"'{text}' are not whole numbers. Write them like 1,2,3")
    return [int(part) for part in parts]


def seconds(text: str) -> float:
    """A finite number of seconds, at least 1: less would be a typing error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 1):
        raise ArgumentTypeError(f"'{text}' is not a number of seconds of at least 1")
    return value


def cron(text: str) -> str:
    """A schedule in cron syntax."""
    from prefect.client.schemas.schedules import CronSchedule  # late, because it is slow to import

    try:
        CronSchedule(cron=text)
    except ValueError as error:
        raise ArgumentTypeError(f"'{text}' is not a schedule. Write one like '0 3 * * *'") from error
    return text
