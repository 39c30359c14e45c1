"""The words of a verdict on a difference, used by all commands."""

from __future__ import annotations

from typing import Final

CANNOT_TELL: Final = "cannot tell"
ONE_SEED: Final = "(1 seed)"
ABOUT_ONE_SEED: Final = (
    f"{ONE_SEED}: one side has a single training, so the difference is between these trainings. Other seeds may differ."
)


def judged(word: str, *, over_seeds: bool) -> str:
    """Return a verdict, marked if it is about single trainings."""
    return word if over_seeds else f"{word} {ONE_SEED}"
