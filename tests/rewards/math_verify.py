"""Measures math-verify on the cases of the mathematical dialects, next to our verdicts (make compare-math-verify)."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from docs.make.answers import counted, line, shares, total, write
from tests.rewards.judged import CASES, FRESH, MATH, Case, cases, count

HEAD = [
    "| dialect | our false positives | negatives | math-verify: false positives | 95 % | negatives | 95 % |",
    "|---|---|---|---|---|---|---|",
]


def parsed_gold(library: Any, gold: str) -> Any:
    """The gold answer as its README asks for it: LaTeX between dollars; money and plain text as they are."""
    dollars = [] if "$" in gold else library.parse(f"${gold}$")
    return dollars or library.parse(gold)


def is_right(library: Any, case: Case) -> bool:
    """What math-verify says; a timeout or an exception is not right."""
    relations = case.options.pairs == "intervals"
    try:
        gold, found = parsed_gold(library, case.answer), library.parse(case.completion)
        return bool(library.verify(gold, found, allow_set_relation_comp=relations))
    except Exception:  # noqa: BLE001  whatever a parser raises on hostile text
        return False


def main() -> None:
    """Print the table and write it into the page."""
    library = import_module("math_verify")
    logging.disable(logging.CRITICAL)
    for mark, folder in (("math-verify-fresh", FRESH), ("math-verify", CASES)):
        ours = {name: counted(name, folder) for name in MATH}
        theirs = {name: count((one.right, is_right(library, one)) for one in cases(name, folder)) for name in MATH}
        for found in (ours, theirs):
            found["all"] = total(found.values())
        rows = [[f"`{name}`", *shares(ours[name])[::2], *shares(theirs[name])] for name in ours]
        write(mark, [*HEAD, *map(line, rows)])


if __name__ == "__main__":
    main()
