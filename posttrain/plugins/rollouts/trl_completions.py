"""The completions that TRL's GRPO and RLOO trainers write with `log_completions=True`: completions_*.parquet.

A file contains the last batch of samples. TRL writes one at each logging step, so a batch that is trained in several
steps appears in several files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.data.parquet import DECODE_ERRORS, decode
from posttrain.errors import DataError
from posttrain.pipeline.outside.rollouts.sampled import Sampled, text_of, turns_of, unreadable
from posttrain.rollout import Score

FILES: Final = "completions_*.parquet"
_COLUMNS: Final = ("step", "prompt", "completion", "advantage")


def read(folder: Path) -> Iterator[Sampled]:
    """Yield the completions of each batch once, with the first step that logged it."""
    before: pl.DataFrame | None = None
    for file in sorted(folder.rglob(FILES)):
        try:
            frame = decode(file)
        except DECODE_ERRORS as error:
            raise DataError(
                what=f"it cannot be read ({error!s:.100})", where=str(file), fix="Write it again"
            ) from error
        missing = [name for name in _COLUMNS if name not in frame.columns]
        if missing:
            what = f"it has no column {', '.join(missing)}; it has {', '.join(frame.columns)[:200]}"
            raise DataError(what=what, where=str(file), fix="Give the files that log_completions=True writes")
        batch = frame.drop("step")
        if before is None or not batch.equals(before):
            yield from _rows(file, frame)
        before = batch


def _rows(file: Path, frame: pl.DataFrame) -> Iterator[Sampled]:
    """Yield the rows of a file. If a reward function returned None for a row, the row has no score from it."""
    others = [name for name in frame.columns if name not in _COLUMNS]
    rewards = [name for name in others if frame.schema[name].is_float()]
    for number, row in enumerate(frame.iter_rows(named=True), 1):
        values = {name: row[name] for name in rewards if row[name] is not None and not math.isnan(row[name])}
        if not isinstance(row["step"], int):
            raise unreadable(file, number, f"step is {row['step']!r:.40}", "Fix the row, or remove it")
        prompt = turns_of(row["prompt"], "prompt", file, number)
        info: dict[str, Any] = {name: row[name] for name in others if name not in rewards}
        yield Sampled(
            group=(row["step"], prompt), round=row["step"], prompt=prompt,
            completion=text_of(turns_of(row["completion"], "completion", file, number)),
            scores={name: Score(value) for name, value in values.items()},
            step=row["step"], advantage=row["advantage"], info=info,
        )  # fmt: skip
