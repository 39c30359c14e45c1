"""How many texts have to be read twice, as judged by a person who did not write them.

    python -m benchmarks.english draw --seed 1 sheet.txt        # 200 texts and 20 controls, numbered, in a random order
    python -m benchmarks.english score --seed 1 3,17,88         # the numbers that the reader had to read twice

The sheet has 80 sentences of pages, 40 docstrings, 40 errors, 40 help texts, and unmarked among them 20 controls from
english_controls.json: 10 that have to be read twice, and 10 rewritten ones. If the reader flags fewer than 8 of the
first 10, the reader overlooks too much: take another one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

from docs.make.texts import texts

DRAWN: Final = {"page": 80, "docstring": 40, "error": 40, "help": 40}
CONTROLS: Final = Path(__file__).with_name("english_controls.json")
FOUND: Final = 8
"""The fewest of the 10 controls that a reader has to flag."""


@cache
def sheet(seed: int) -> list[tuple[str, str]]:
    """Return (kind, text) in the order of the sheet."""
    draw = random.Random(seed)
    read = [text for text in texts() if not text.file.startswith("docs/reports")]
    rows = []
    for kind, count in DRAWN.items():
        known = sorted({text.text for text in read if text.kind == kind})
        rows += [(kind, text) for text in draw.sample(known, count)]
    for kind, controls in json.loads(CONTROLS.read_text(encoding="utf-8")).items():
        rows += [(f"control {kind}", text) for text in controls]
    draw.shuffle(rows)
    return rows


def score(seed: int, flagged: set[int]) -> str:
    """Return the shares of texts that were read twice, by kind, and whether the reader counts."""
    rows = sheet(seed)
    if odd := sorted(flagged - {*range(1, len(rows) + 1)}):
        raise SystemExit(f"error: the sheet has no number {odd[0]}; it has 1 to {len(rows)}")
    twice = Counter(rows[number - 1][0] for number in flagged)
    ours = sum(twice[kind] for kind in DRAWN)
    lines = [f"{kind}: {twice[kind]} of {count}" for kind, count in DRAWN.items()]
    caught, wrong = twice["control twice"], twice["control once"]
    lines += [
        f"all: {ours} of {sum(DRAWN.values())}, {ours / sum(DRAWN.values()):.1%}",
        f"controls: {caught} of 10 bad ones flagged, {wrong} of 10 good ones",
    ]
    lines += [] if caught >= FOUND else [f"The reader flagged fewer than {FOUND} bad controls: take another one"]
    return "\n".join(lines)


def main() -> None:
    """Draw a sheet, or score one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    drawing, scoring = actions.add_parser("draw"), actions.add_parser("score")
    for action in (drawing, scoring):
        action.add_argument("--seed", type=int, required=True)
    drawing.add_argument("file", type=Path)
    scoring.add_argument("flagged", help="numbers between commas")
    arguments = parser.parse_args()
    if arguments.action == "draw":
        lines = (f"{number}. {text}" for number, (_, text) in enumerate(sheet(arguments.seed), 1))
        arguments.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {arguments.file}")
    else:
        print(score(arguments.seed, {int(part) for part in arguments.flagged.split(",") if part}))


if __name__ == "__main__":
    main()
