"""Aligned text tables for the terminal. Columns that do not fit are omitted."""

from __future__ import annotations

import re
import shutil
import textwrap
from argparse import RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence

WIDEST = 1000
"""The width if the output is not a terminal, so that nothing is cut."""


def terminal_width() -> int:
    """Return the width of the terminal, or of the variable COLUMNS."""
    return shutil.get_terminal_size((WIDEST, 0)).columns


def folded(line: str) -> str:
    """Return a line folded at the terminal's width, with the rest indented. Coloured lines are not folded."""
    width = terminal_width()
    if len(line) <= width or "\x1b" in line:
        return line
    column = re.match(r"\s*(?:\S.*? {2,})?", line[: width // 2])
    below = " " * len(column[0]) if column else ""
    return _Wrapper(width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False).fill(line)


class _Wrapper(textwrap.TextWrapper):
    """Wraps at spaces, and within lists such as `a|b|c`."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=\|))")


class FoldedHelp(RawDescriptionHelpFormatter):
    """Help texts that keep their lines, each wrapped at the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del width, indent
        return "\n".join(map(folded, text.splitlines()))


def text_table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), ruled: bool = False) -> list[str]:
    """Return the rows as lines; the first row has the titles. A last line lists columns that do not fit.

    `left`: the left-aligned columns. The first two are always shown.
    """
    if not rows:
        return []
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    shown = len(widths)
    while shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > terminal_width():
        shown -= 1
    lines = []
    for row in rows:
        pairs = enumerate(zip(row[:shown], widths, strict=False))
        cells = [cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in pairs]
        lines.append("  ".join(cells).rstrip())
    if ruled:
        lines.insert(1, "-" * max(map(len, lines)))
    if left_out := [title for title in rows[0][shown:] if title]:
        lines.append(f"not shown: {', '.join(left_out)} (a wider terminal, or --json)")
    return lines
