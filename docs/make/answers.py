"""Measures the reward `correct` on the adversarial cases, and writes the tables of docs/reports/answers.md.

`python -m docs.make.answers FILE.jsonl` only prints the table of a file of cases (tests/library/answers/strangers.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path

from benchmarks import echo
from tests.library.answers import strangers
from tests.library.rewards.judged import CASES, DIALECTS, FRESH, Case, Count, cases, count, interval, judged

PAGE = Path(__file__).parents[2] / "docs" / "reports" / "answers.md"
HEAD = [
    "| dialect | cases | right | false positives | 95 % interval | false negatives | 95 % interval |",
    "|---|---|---|---|---|---|---|",
]


def shares(found: Count) -> list[str]:
    """False positives and false negatives, each with its interval."""
    cells = []
    for hits, of in ((found.false_positives, found.wrong), (found.false_negatives, found.right)):
        low, high = interval(hits, of)
        cells += [f"{hits} ({hits / of:.1%})", f"{low:.1%} to {high:.1%}"]
    return cells


@cache
def said(dialect: str, folder: Path) -> list[tuple[Case, bool]]:
    """Each case, and whether the reward says that it is right."""
    return [(one, judged(one).value == 1.0) for one in cases(dialect, folder)]


def counted(dialect: str, folder: Path = CASES) -> Count:
    """What the reward gets wrong in a dialect."""
    return count((one.right, right) for one, right in said(dialect, folder))


def total(counts: Iterable[Count]) -> Count:
    """The sums of several counts."""
    return Count(*(sum(numbers) for numbers in zip(*(astuple(one) for one in counts), strict=True)))


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def table(folder: Path) -> list[str]:
    """The table of the dialects that a folder has, and of all together."""
    found = {name: counted(name, folder) for name in DIALECTS if (folder / f"{name}.jsonl").exists()}
    found["all"] = total(found.values())
    rows = [[f"`{name}`", str(one.right + one.wrong), str(one.right), *shares(one)] for name, one in found.items()]
    return [*HEAD, *map(line, rows)]


def write(mark: str, lines: Sequence[str]) -> None:
    """Print the lines, and put them into the page between the marks."""
    text = "\n".join([*lines, ""])
    sys.stdout.write(text)
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(
            f"{PAGE}: the marks {begin.strip()} and {end.strip()} were not found. Put them where the table belongs"
        )
    PAGE.write_text("".join([before, begin, text, end, after]), encoding="utf-8")


if __name__ == "__main__" and len(sys.argv) > 1:
    sys.stdout.write("\n".join([*strangers.table(strangers.verdicts(Path(sys.argv[1]))), ""]))
elif __name__ == "__main__":
    write("strangers", strangers.table(strangers.verdicts(), every=False))
    write("second-stranger", strangers.table(strangers.verdicts(strangers.SECOND), every=False))
    write("third-writer", strangers.table(strangers.verdicts(strangers.THIRD), every=False))
    write("attacker", strangers.table(strangers.verdicts(strangers.ATTACKER), every=False))
    write("cases", table(CASES))
    write("fresh", table(FRESH))
    write("echo", echo.table())
