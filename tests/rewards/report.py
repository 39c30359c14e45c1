"""Measures the reward `correct` on the adversarial cases, and writes the table of docs/rewards.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.rewards.judged import DIALECTS, Count, cases, count, interval, judged

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
BEGIN, END = "<!-- cases -->\n", "<!-- /cases -->\n"
HEAD = [
    "| dialect | cases | right | false positives | 95 % interval | false negatives | 95 % interval |",
    "|---|---|---|---|---|---|---|",
]


def row(name: str, found: Count) -> str:
    """A line of the table."""
    cells = [name, str(found.right + found.wrong), str(found.right)]
    for hits, of in ((found.false_positives, found.wrong), (found.false_negatives, found.right)):
        low, high = interval(hits, of)
        cells += [f"{hits} ({hits / of:.1%})", f"{low:.1%} to {high:.1%}"]
    return f"| {' | '.join(cells)} |"


def table(dialects: Sequence[str], remainder: int | None = None) -> list[str]:
    """The table; of every second case only, if a remainder is given."""
    lines = list(HEAD)
    for name in dialects:
        some = [one for one in cases(name) if remainder is None or one.number % 2 == remainder]
        lines.append(row(f"`{name}`", count((one.right, judged(one).value == 1.0) for one in some)))
    return lines


def main() -> None:
    """Print the table of all cases and of each half, and write the first into the page."""
    every = table(DIALECTS)
    for title, lines in (("all", every), ("even", table(DIALECTS, 0)), ("odd", table(DIALECTS, 1))):
        sys.stdout.write("\n".join([title, *lines, ""]))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if after:
        PAGE.write_text("".join([before, BEGIN, *(f"{line}\n" for line in every), END, after]), encoding="utf-8")


if __name__ == "__main__":
    main()
