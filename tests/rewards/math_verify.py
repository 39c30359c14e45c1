"""Measures math-verify on the cases of the mathematical dialects, beside ours (make compare-math-verify)."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from tests.rewards.judged import MATH, Case, cases, count
from tests.rewards.report import counted, line, shares, write

HEAD = [
    "| dialect | ours: false positives | false negatives | math-verify: the same | 95 % | false negatives | 95 % |",
    "|---|---|---|---|---|---|---|",
]


def is_right(library: Any, case: Case) -> bool:
    """What math-verify says of the gold answer as LaTeX or as plain text; a timeout or an exception is not right."""
    relations = case.options.pairs == "intervals"
    for gold in (f"${case.answer}$", case.answer):
        try:
            expected, found = library.parse(gold), library.parse(case.completion)
            if library.verify(expected, found, allow_set_relation_comp=relations):
                return True
        except Exception:  # noqa: BLE001  whatever a parser raises on hostile text
            continue
    return False


def main() -> None:
    """Print the table and write it into the page."""
    library = import_module("math_verify")
    logging.disable(logging.CRITICAL)
    lines = list(HEAD)
    for name in MATH:
        ours = shares(counted(name))
        theirs = shares(count((one.right, is_right(library, one)) for one in cases(name)))
        lines.append(line([f"`{name}`", ours[0], ours[2], *theirs]))
    write("math-verify", lines)


if __name__ == "__main__":
    main()
