"""The folder of GSM8K as the Hub has it, with rows of the same shape: 60 train and 20 test problems."""

from __future__ import annotations

from pathlib import Path

import polars as pl

NAMES = ("Janet", "Omar", "Lena", "Ravi")


def row(number: int) -> dict[str, str]:
    """A problem with its worked answer, which ends in `#### N`."""
    name, boxes, eggs = NAMES[number % 4], 2 + number % 9, 3 + number // 9
    question = f"{name} buys {boxes} boxes of {eggs} eggs and eats 2. How many eggs are left?"
    first = f"{name} has {boxes}*{eggs}=<<{boxes}*{eggs}={boxes * eggs}>>{boxes * eggs} eggs."
    left = boxes * eggs - 2
    return {"question": question, "answer": f"{first}\n{boxes * eggs}-2={left}\n#### {left}"}


def write_gsm8k(folder: Path) -> None:
    """Write `main/train-00000-of-00001.parquet` and `main/test-00000-of-00001.parquet`, and the Hub's other files."""
    main = folder / "main"
    main.mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    for split, numbers in (("train", range(60)), ("test", range(60, 80))):
        pl.DataFrame([row(one) for one in numbers]).write_parquet(main / f"{split}-00000-of-00001.parquet")
