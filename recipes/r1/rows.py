"""The text and the demonstrations of the recipe r1, which think in words of two languages.

TABLE FILE    put words in front of the steps: of one language in each text of a corpus, of both in a demonstration;
              some demonstrations correct a step
FILE          write questions that need no working
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import polars as pl

WORDS: Final = (("First", "Then"), ("先", "再"))
"""What the two steps begin with: in English, or in Chinese."""
REDONE: Final = ("No", "不")
CORRECTED: Final = 0.3
"""Share of worked demonstrations in which the second step is wrong at first."""
STEP: Final = re.compile(r"\d+[-+*]\d+=\d+")
NAMES: Final = ("Ann", "Ben", "Dan", "Eva", "Kim", "Tom")
THINGS: Final = ("apples", "books", "cards", "coins", "pens", "toys")
SIGNS: Final = {"gets": "+", "buys": "+", "finds": "+", "loses": "-", "sells": "-", "drops": "-"}


def worked(text: str, rng: random.Random) -> str:
    """Return a text whose two steps, if it has as many on lines of their own, begin with words of one language."""
    lines, words = text.split("\n"), rng.choice(WORDS)
    steps = [place for place, line in enumerate(lines) if STEP.fullmatch(line)]
    if len(steps) == len(words):
        for place, word in zip(steps, words, strict=True):
            lines[place] = f"{word} {lines[place]}"
    return "\n".join(lines)


def cold(messages: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Return a conversation whose working has words, each in one of two languages."""
    *before, answer = messages
    *steps, last = answer["content"].split("\n")
    lines = [f"{rng.choice(WORDS)[nth]} {step}" for nth, step in enumerate(steps)]
    if steps and rng.random() < CORRECTED:
        left, result = steps[-1].split("=")
        wrong = int(result) + rng.choice((-2, -1, 1, 2))
        lines[-1:] = [f"{rng.choice(WORDS)[1]} {left}={abs(wrong)}", f"{rng.choice(REDONE)} {steps[-1]}"]
    return [*before, {"role": "assistant", "content": "\n".join([*lines, last])}]


def general() -> Iterator[dict[str, str]]:
    """Yield questions that need no working."""
    for name, thing, (verb, answer) in product(NAMES, THINGS, SIGNS.items()):
        yield {"prompt": f"{name} {verb} {thing}. + or -?", "completion": answer, "answer": answer}


def rewritten(table: Path, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the rows of a corpus or a chat table with words."""
    for row in pl.read_parquet(table).drop("id").iter_rows(named=True):
        yield row | ({"text": worked(row["text"], rng)} if "text" in row else {"messages": cold(row["messages"], rng)})


def main() -> None:
    """Write the rows of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("files", type=Path, nargs="+", help="TABLE FILE, or FILE")
    options = parser.parse_args()
    *tables, file = options.files
    rng = random.Random(options.seed)
    rows = list(rewritten(*tables, rng)) if tables else rng.sample(found := list(general()), len(found))
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
