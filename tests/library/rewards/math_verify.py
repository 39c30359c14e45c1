"""Measures math-verify on the cases of the mathematical dialects, next to our verdicts (make compare-math-verify)."""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import Any

from docs.make.answers import counted, line, shares, total, write
from posttrain.rewards.correct import CorrectOptions
from tests.library.answers.strangers import ATTACKER, FOURTH, SECOND, THIRD, verdicts
from tests.library.rewards.judged import CASES, FRESH, MATH, Case, cases, count

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


def speeds(library: Any) -> list[str]:
    """Return answers per second of both on a stranger's cases, on one core."""
    ours = [one for one in verdicts(SECOND) if one.case["kind"] == "math"]
    started = time.process_time()
    for one in ours:
        case = Case(0, one.case["gold"], one.case["completion"], one.case["right"], "", CorrectOptions())
        is_right(library, case)
    theirs = len(ours) / (time.process_time() - started)
    own = len(ours) / sum(one.seconds for one in ours)
    return [f"Answers per second on one core, second stranger's cases: ours {own:.0f}, math-verify {theirs:.0f}."]


def sets_of_others(library: Any) -> list[str]:
    """A table of the sets of cases by people who had not read the parser: marked answers that are no choices."""
    lines = [
        "| set | wrong | accepted | by math-verify | right | missed | by math-verify |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in (THIRD, ATTACKER, FOURTH):
        if not path.is_file():
            continue
        rows = [one for one in verdicts(path) if one.case["marked"] and one.case["kind"] != "choice"]
        cells = [f"`{path.stem}`"]
        for label in (False, True):
            some = [one for one in rows if one.case["right"] is label]
            theirs = [
                is_right(library, Case(0, one.case["gold"], one.case["completion"], label, "", CorrectOptions()))
                for one in some
            ]
            wrong = sum(one.is_wrong for one in some), sum(found is not label for found in theirs)
            cells += [str(len(some)), *(f"{count} ({count / len(some):.1%})" for count in wrong)]
        lines.append(line(cells))
    return lines


def main() -> None:
    """Print the table and write it into the page."""
    library = import_module("math_verify")
    logging.disable(logging.CRITICAL)
    write("speed", speeds(library))
    write("math-verify-others", sets_of_others(library))
    for mark, folder in (("math-verify-fresh", FRESH), ("math-verify", CASES)):
        ours = {name: counted(name, folder) for name in MATH}
        theirs = {name: count((one.right, is_right(library, one)) for one in cases(name, folder)) for name in MATH}
        for found in (ours, theirs):
            found["all"] = total(found.values())
        rows = [[f"`{name}`", *shares(ours[name])[::2], *shares(theirs[name])] for name in ours]
        write(mark, [*HEAD, *map(line, rows)])


if __name__ == "__main__":
    main()
