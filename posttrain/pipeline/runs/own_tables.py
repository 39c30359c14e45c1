"""Tables from the user's own function, split and checked like files. It may open only files listed in its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import TURNS, Kind, Split, Tables, content_ids
from posttrain.errors import DataError
from posttrain.pipeline.by_name import place_of
from posttrain.pipeline.lock.code_manifest import named_files
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.tables.conversion import ConvertedRows
from posttrain.pipeline.tables.options import BAD_ROWS, BadRows, ReadOptions
from posttrain.pipeline.tables.user_data import ReadSource, make_table, named_splits, split_tables
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import Params, check
from posttrain.settings.plain import CUSTOM


class OwnTables(Params):
    """Keys of a run of `data.tasks` with the user's own function, in addition to the function's parameters."""

    splits: dict[Split, str] = Field(default={}, description="our split -> its name in the column `split`")
    heldout_share: float = Field(0.05, ge=0, lt=0.5, description="as in data.files, for a table without `split`")
    test_share: float = Field(0.05, ge=0, lt=0.5, description="as in data.files, for a table without `split`")
    bad_rows: BadRows = Field("stop", description=BAD_ROWS)


def own_options(run: str, params: type[Params]) -> dict[str, Any]:
    """Return the run's keys that belong to `OwnTables` and are not parameters of the function."""
    settings = at(read(), f"data.tasks.{run}")
    return {key: settings[key] for key in settings if key in OwnTables.model_fields and key not in params.model_fields}


def as_files(
    run: str, where: str, function: str, frames: Mapping[Kind, pl.DataFrame], given: Mapping[str, Any]
) -> Tables:
    """Return a function's frames as tables, like an entry of `data.files`. A table with `split` keeps its splits."""
    options = check(OwnTables, dict(given), where=f"data.tasks.{run}")
    reads: dict[Kind, list[ReadSource]] = {}
    for kind, frame in frames.items():
        shares = {} if "split" not in frame.columns else {"heldout_share": 0.0, "test_share": 0.0}
        source = ReadOptions(**{**options.model_dump(), **shares, **options.model_dump(include={*shares} & {*given})})
        rows = with_problem(frame, kind).drop("id", "split", strict=False)
        split = frame["split"] if "split" in frame.columns else pl.Series([None] * frame.height, dtype=pl.String())
        origin = {"source": pl.lit("train"), "file": pl.lit(f"function `{function}`,")}
        rows = rows.with_columns(split.alias("given"), **origin).with_row_index("line")
        reads[kind] = [named_splits(ConvertedRows(rows, [], False), ["train"], source, kind, f"{where}, {kind}")]
    frames = split_tables(reads, f"data.tasks.{run}")
    rejected = Path("rejected") / run
    return {
        kind: make_table(rows, reads[kind], kind, f"{where}, {kind}", rejected / f"{kind}.parquet")
        for kind, rows in frames.items()
    }


def with_problem(frame: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the frame with a `problem`; the default is the hash of the prompt."""
    column = {"corpus": "", "chat": "messages"}.get(kind, "prompt")
    if not column or "problem" in frame.columns or frame.schema.get(column) != TURNS:
        return frame
    turns = pl.col(column)
    prompt = turns.list.head(turns.list.len().cast(pl.Int64()).sub(1).clip(0)) if kind == "chat" else turns
    return frame.with_columns(problem=content_ids(frame.select(prompt.alias("prompt")), ["prompt"]))


@dataclass
class _Watched:
    """The files that a function may open while it runs, and the first other file that it opened."""

    run: str
    where: str
    named: frozenset[Path]
    refused: DataError | None = None

    def opened(self, path: Any, mode: Any) -> None:
        """Reject a workspace file whose changes posttrain would not notice."""
        if not isinstance(path, str | bytes | os.PathLike) or (isinstance(mode, str) and {*"wax+"} & {*mode}):
            return
        place, root = Path(os.fsdecode(path)).resolve(), Path.cwd().resolve()
        if not place.is_relative_to(root) or place in self.named or not place.is_file():
            return
        relative = place.relative_to(root)
        library = place.is_relative_to(sys.prefix) or place_of(place) is not None
        if (
            library
            or relative.parts[0].startswith(".")
            or relative.suffix in (".py", ".pyc")
            or relative == Path(PARAMS_FILE)
        ):
            return
        target = relative if relative.parts[0] == CUSTOM.name else CUSTOM / relative.name
        move = "Pass it" if target == relative else f"Move it to {CUSTOM}/ and pass it"
        self.refused = self.refused or DataError(
            what=f"it opens {relative}, which its run does not list, so changes of the file would not be noticed",
            where=self.where,
            fix=f"{move} as a parameter of the task, e.g. data.tasks.{self.run}.file: {target}",
        )
        raise self.refused


_WATCHED: Final[list[_Watched]] = []


@contextmanager
def watched_files(run: str, where: str) -> Iterator[None]:
    """While the function runs, reject workspace files that the run does not list. Libraries may open their files."""
    _add_hook()
    named = frozenset(Path(file).resolve() for file in named_files(at(read(), f"data.tasks.{run}")))
    _WATCHED.append(_Watched(run, where, named))
    try:
        yield
    finally:
        watched = _WATCHED.pop()
    if watched.refused:
        raise watched.refused  # the function may have caught it


@cache
def _add_hook() -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _WATCHED and event in ("open", "sqlite3.connect"):
            _WATCHED[-1].opened(arguments[0], arguments[1] if len(arguments) > 1 else None)

    sys.addaudithook(hook)
