"""Format versions of what posttrain writes. Version 0.1 wrote none, which counts as format 1."""

from __future__ import annotations

from typing import Final

from posttrain.errors import ParamsError, PosttrainError

TABLES: Final = 2
MODELS: Final = 2
CHECKPOINTS: Final = 3
PARAMS: Final = 2
UPGRADE: Final = "Run `python -m posttrain upgrade`, which shows what to change (docs/versions.md)"


def check_merged(text: str, where: str) -> None:
    """Refuse a text in which git left a merge conflict."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("<<<<<<< "):
            fix = "Keep what is right between `<<<<<<<` and `>>>>>>>`, and remove these lines and `=======`"
            raise ParamsError(what=f"line {number}: git left a merge conflict", where=where, fix=fix)


def check_format(found: object, known: int, where: str, error: type[PosttrainError]) -> None:
    """Refuse what a newer posttrain wrote; older formats are for the reader to judge."""
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise error(what=f"format = {found!r:.40} is not a format version", where=where, fix=f"Use {known}")
    if found > known:
        what = f"made by a newer posttrain (format {found}; this one reads formats up to {known})"
        raise error(what=what, where=where, fix="Update posttrain, or use the version that made it")
