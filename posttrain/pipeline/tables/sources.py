"""The sources of tables: the user's files, and data sets on the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import polars as pl
from pydantic import Field, field_validator, model_validator

from posttrain.data.columns import VARIABLES, Kind, Tables, with_ids
from posttrain.errors import DataError, ParamsError, PosttrainError
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.tables.options import FileTables, HubTables, Source, numbered_sources
from posttrain.pipeline.tables.user_data import ReadSource, make_table, read_sources, split_tables
from posttrain.settings.params import Params

USER_KINDS: Final[tuple[Kind, ...]] = ("corpus", "chat", "prompts", "pairs", "feedback")
"""The kinds of tables that a user can give."""
T = TypeVar("T")


class TablesByKind(Params, Generic[T]):
    """The source of each kind of table."""

    corpus: T | None = Field(default=None, description="texts for a model from scratch, or for ptx")
    chat: T | None = Field(default=None, description="demonstrations: messages, or prompt + completion")
    prompts: T | None = Field(default=None, description="prompts, with an answer if a reward needs it")
    pairs: T | None = Field(default=None, description="comparisons: prompt + chosen + rejected")
    feedback: T | None = Field(default=None, description="prompt + completion + label; made from the pairs if missing")

    license: str | None = Field(
        default=None,
        min_length=1,
        description="the license, for model cards; default: the license on the Hub",
    )

    @model_validator(mode="after")
    def _has_a_table(self) -> Self:
        _check_tables(self)
        return self


class UserTables(TablesByKind[FileTables]):
    """The files of each table."""

    @field_validator(*USER_KINDS, mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [{"path": entry} if isinstance(entry, str) else entry for entry in value]
        return {"path": value} if isinstance(value, str) else value


class FilesRun(UserTables):
    """One run of `data.files`: your own folder, and the files in it for each table."""

    path: str = Field(min_length=1, description="a folder; DVC tracks every file in it as an input")
    outside_workspace: bool = Field(
        default=False, description="allow `path`, or a file in it, to lead out of the workspace"
    )


class HubRun(TablesByKind[HubTables]):
    """One run of `data.hub`: data sets on the Hugging Face Hub, each pinned to a commit."""


def tables_of_run(run: TablesByKind[Any]) -> dict[Kind, Source | list[Source]]:
    """Return the tables that a run lists."""
    return {kind: table for kind in USER_KINDS if (table := getattr(run, kind)) is not None}


def sources_by_key(run: TablesByKind[Any]) -> dict[str, tuple[Kind, Source]]:
    """Return every source of a run by key: `chat`, or `chat.0` and `chat.1`."""
    tables = tables_of_run(run).items()
    return {key: (kind, source) for kind, table in tables for key, source in numbered_sources(kind, table).items()}


def _check_tables(run: TablesByKind[Any]) -> None:
    """Reject a run without tables, with weights for only some sources, or with shares that split one problem."""
    tables = tables_of_run(run)
    if not tables:
        raise ValueError(f"it has no table. Give it one of: {', '.join(USER_KINDS)}")
    for kind, table in tables.items():
        weights = {key: source.weight for key, source in numbered_sources(kind, table).items()}
        unweighted = [key for key, weight in weights.items() if weight is None]
        if 0 < len(unweighted) < len(weights):
            raise ValueError(f"{unweighted[0]} has no weight, but others have one. Give every source a weight, or none")
    sources = sources_by_key(run)
    for share in ("heldout_share", "test_share"):
        _check_same_share(
            share, {key: getattr(source, share) for key, (kind, source) in sources.items() if kind != "corpus"}
        )
        _check_same_share(
            share, {key: getattr(source, share) for key, (kind, source) in sources.items() if kind == "corpus"}
        )


def _check_same_share(share: str, values: dict[str, float]) -> None:
    if len(set(values.values())) > 1:
        listing = ", ".join(f"{key}.{share} = {value:g}" for key, value in values.items())
        raise ValueError(
            f"{listing}: a problem that is in two tables would be in different splits. Give all of them the same "
            f"{share}, "
            f"e.g. `{share}: {max(values.values()):g}` in each, or put unrelated tables into separate runs"
        )


def file_tables(run: str) -> Tables:
    """Return the tables of one run of `data.files`."""
    where = f"data.files.{run}"
    params = load(FilesRun, where)
    root = Path(params.path)
    if not root.is_dir():
        what = "this is a file, not a folder" if root.is_file() else "folder not found"
        fix = "Give the folder, and name the files in it: chat: demonstrations.jsonl"
        raise ParamsError(what=what, where=f"{where}.path = {params.path} (params.yaml)", fix=fix)
    return load_tables(params, where, root, outside_workspace=params.outside_workspace)


def hub_tables(run: str) -> Tables:
    """Return the tables of one run of `data.hub`."""
    where = f"data.hub.{run}"
    return load_tables(load(HubRun, where), where, Path(), outside_workspace=False)


def load_tables(params: TablesByKind[Any], where: str, root: Path, *, outside_workspace: bool) -> Tables:
    """Return the tables of a run. Without feedback, it is made from pairs. Errors of all tables are raised together."""
    errors: list[PosttrainError] = []
    reads: dict[Kind, list[ReadSource]] = {}
    for kind, source in tables_of_run(params).items():
        with _collected(errors):
            reads[kind] = read_sources(source, kind, f"{where}.{kind}", root, outside_workspace=outside_workspace)
    tables = tables_of_reads(reads, where, errors)
    if "pairs" in tables and "feedback" not in tables:
        tables["feedback"] = feedback_from_pairs(tables["pairs"])
    return tables


def tables_of_reads(reads: dict[Kind, list[ReadSource]], where: str, errors: list[PosttrainError]) -> Tables:
    """Return the checked tables from what was read. Errors of all tables, including `errors`, are raised together."""
    tables: Tables = {}
    frames: dict[Kind, pl.DataFrame] = {}
    with _collected(errors):
        frames = split_tables(reads, where)
    for kind, rows in frames.items():
        # rejected rows are written outside data/, so that no output is half-written
        rejected = Path("rejected") / where.rpartition(".")[2] / f"{kind}.parquet"
        with _collected(errors):
            tables[kind] = make_table(rows, reads[kind], kind, f"{where}.{kind}", rejected)
    if len(errors) > 1:
        listed = "\n".join(map(str, errors))
        raise DataError(what=f"{len(errors)} tables have errors", where=where, fix=f"Fix these:\n{listed}")
    if errors:
        raise errors[0]
    return tables


@contextmanager
def _collected(errors: list[PosttrainError]) -> Iterator[None]:
    try:
        yield
    except PosttrainError as error:
        errors.append(error)


def feedback_from_pairs(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return feedback with the label true for chosen answers and false for rejected answers."""
    shared = [name for name in ("split", "problem", "prompt", VARIABLES) if name in pairs.columns]
    sides = [
        pairs.select(*shared, completion=side, label=pl.lit(value))
        for side, value in (("chosen", True), ("rejected", False))
    ]
    return with_ids(pl.concat(sides), "feedback").unique("id", maintain_order=True)
