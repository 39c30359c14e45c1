"""Read a finished run's stored rollouts, as sampled and scored objects or as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.data.parquet import DECODE_ERRORS
from posttrain.errors import DataError
from posttrain.online.collect import Draw
from posttrain.online.rollout_log import FORMAT, SUMMARY
from posttrain.online.stored import records
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import VERIFY
from posttrain.rollout import Prompt, Rollout, Score, TokenRow, stored_value
from posttrain.settings.plain import check_format


class StoredRollouts:
    """The folder of a run under rollouts/. It must contain the text of all rollouts."""

    def __init__(self, folder: Path, reader: str) -> None:
        """`reader`: the caller that needs the text, for the error."""
        self.folder, self.parts = folder, sorted(folder.glob("part-?????.parquet"))
        try:
            self.summary: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
            names = ("format", "rollouts", "text_ends_at_round", "rows")
            written, stored, ends, rows = (self.summary[name] for name in names)
        except (OSError, ValueError, LookupError, TypeError) as error:
            what, fix = (
                f"no rollouts can be read here ({error!r:.100})",
                "Run it: `dvc repro`, or get it with `dvc pull`",
            )
            raise DataError(what=what, where=str(folder), fix=fix) from error
        check_format(written, FORMAT, str(folder / SUMMARY), DataError)
        if stored != "full" or ends is not None:
            reached = "" if ends is None else f", and from round {ends} on no text: rollouts_gb was reached"
            fix = "Run it again with rollouts: full" + ("" if ends is None else " and a higher rollouts_gb")
            if stored not in ("sampled", "none", "full"):
                fix = "Use rollouts with tokens and log-probs, e.g. from prime-rl"
            what = f"{reader} needs all rollouts, but these were stored with rollouts: {stored}{reached}"
            raise DataError(what=what, where=str(folder), fix=fix)
        if sum(int(self.figures(file, pl.len()).item()) for file in self.parts) != rows:
            raise DataError(what="some of the rollouts are missing", where=str(folder), fix=VERIFY)

    def figures(self, file: Path, *columns: pl.Expr | str) -> pl.DataFrame:
        """Return some expressions over a part of the table without reading other columns."""
        try:
            return pl.scan_parquet(file).select(columns).collect()
        except DECODE_ERRORS as error:
            raise DataError(what=f"it cannot be read ({error!s:.100})", where=str(file), fix=VERIFY) from error

    @property
    def steps(self) -> list[dict[str, float]]:
        """Return the exact loss and gradient norm of each optimizer step."""
        return list(self.summary["steps"])

    def table(self) -> pl.DataFrame:
        """Return the whole table, checked."""
        return pl.concat([_part(file) for file in self.parts])

    def drawn(self, first: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """Return the scored rollouts of the draws from `first` on. Raise if they belong to other prompts."""
        rows: list[dict[str, Any]] = []
        for file, low, high in self._draws:
            if low < first + len(prompts) and first <= high:
                rows += _part(file).filter(pl.col("draw").is_between(first, first + len(prompts) - 1)).pipe(records)
        by_draw = {first + offset: prompt for offset, prompt in enumerate(prompts)}
        other = next((row for row in rows if row["prompt_id"] != by_draw[row["draw"]].id), None)
        if other or len(rows) != len(prompts) * self.summary["group_size"]:
            at = other["draw"] if other else first
            what = f"draw {at} is not of prompt {by_draw[at].id}, which the run's parameters and prompts require"
            fix = "Restore params.yaml and the prompts, or run it again: `posttrain status` shows what changed"
            raise DataError(what=what, where=str(self.folder), fix=fix)
        return [stored_rollout(row, by_draw[row["draw"]]) for row in rows]

    @cached_property
    def _draws(self) -> list[tuple[Path, int, int]]:
        """Yield each part with its first and last draw."""
        bounds = (pl.col("draw").min().alias("low"), pl.col("draw").max().alias("high"))
        bounds_of_part = [(file, *self.figures(file, *bounds).row(0)) for file in self.parts]
        return [(file, low, high) for file, low, high in bounds_of_part if low is not None]


@lru_cache(maxsize=1)
def _part(file: Path) -> pl.DataFrame:
    return read_table(file, "training_rollouts")


def stored_rollout(row: dict[str, Any], prompt: Prompt) -> Rollout:
    """Return a row of the table, from `records`, as a rollout with its scores."""
    mask = None if all(row["mask"]) else row["mask"]
    return Rollout(
        prompt,
        row["sample"],
        TokenRow(prompt.ids, row["completion_ids"], mask, row["kept"]),
        row["logps"],
        row["completion"],
        row["finish"],
        version=row["version"],
        scores={score["name"]: Score(stored_value(score) or 0.0, score["status"]) for score in row["scores"]},
        turn_rewards=row["turn_rewards"],
        info=json.loads(row["info"]),
    )


class StoredGroups:
    """Returns the scored rollouts of a finished run instead of new ones."""

    scored, background = True, False

    def __init__(self, stored: StoredRollouts) -> None:
        self._stored = stored

    def sync(self, step: int) -> None:
        """Do nothing, because there are no weights to sample with."""

    def sample(self, draw: Draw) -> list[Rollout]:
        """Return a group for each prompt, in order."""
        return self._stored.drawn(draw.first, draw.prompts)
