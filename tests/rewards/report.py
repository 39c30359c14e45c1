"""Measures the reward `correct` on the adversarial cases, and writes the table of docs/answers.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tests.rewards.judged import DIALECTS, Case, Count, cases, count, interval, judged

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"
BEGIN, END = "<!-- cases -->\n", "<!-- /cases -->\n"
HEAD = [
    "| dialect | cases | right | false positives | 95 % interval | false negatives | 95 % interval |",
    "|---|---|---|---|---|---|---|",
]
HALVES = {"all": (0, 1), "even rows": (0,), "odd rows": (1,)}


def row(name: str, found: Count) -> str:
    """A line of the table."""
    cells = [name, str(found.right + found.wrong), str(found.right)]
    for hits, of in ((found.false_positives, found.wrong), (found.false_negatives, found.right)):
        low, high = interval(hits, of)
        cells += [f"{hits} ({hits / of:.1%})", f"{low:.1%} to {high:.1%}"]
    return f"| {' | '.join(cells)} |"


@cache
def said(dialect: str) -> list[tuple[Case, bool]]:
    """Each case, and whether the reward says that it is right."""
    return [(one, judged(one).value == 1.0) for one in cases(dialect)]


def table(dialects: Sequence[str], remainders: Iterable[int]) -> list[str]:
    """The table of the rows whose number has one of these remainders when halved."""
    kept = set(remainders)
    lines = list(HEAD)
    for name in dialects:
        pairs = [(one.right, right) for one, right in said(name) if one.number % 2 in kept]
        lines.append(row(f"`{name}`", count(pairs)))
    return lines


def main() -> None:
    """Print the table of all cases and of each half, and write the first into the page."""
    for title, remainders in HALVES.items():
        sys.stdout.write("\n".join([title, *table(DIALECTS, remainders), ""]))
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(
            f"{PAGE}: the marks {BEGIN.strip()} and {END.strip()} were not found. Put them where the table belongs"
        )
    lines = [f"{line}\n" for line in table(DIALECTS, (0, 1))]
    PAGE.write_text("".join([before, begin, *lines, end, after]), encoding="utf-8")


if __name__ == "__main__":
    main()
