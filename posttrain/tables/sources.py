"""Where tables come from: files of the user's own, and data sets of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import Field, field_validator, model_validator

from posttrain.errors import DataError, ParamsError, PosttrainError
from posttrain.params import Params, load
from posttrain.tables.columns import Kind, with_ids
from posttrain.tables.options import FileTables, HubTables, Source, numbered
from posttrain.tables.user_data import load_table

Tables = dict[Kind, pl.DataFrame]
GIVEN: Final[tuple[Kind, ...]] = ("corpus", "chat", "prompts", "pairs", "feedback")
"""The kinds of tables that a user can give."""


class FilesRun(Params):
    """One run of `data.files`: a folder of yours, and which of its files is which table."""

    path: str = Field(min_length=1, description="a folder; every file in it is an input that DVC tracks")
    outside_workspace: bool = Field(default=False, description="let `path`, or a file in it, lead out of the workspace")
    corpus: FileTables | None = Field(default=None, description="texts for a model from scratch, or for ptx")
    chat: FileTables | None = Field(default=None, description="demonstrations: messages, or prompt + completion")
    prompts: FileTables | None = Field(default=None, description="prompts, with an answer where a reward checks it")
    pairs: FileTables | None = Field(default=None, description="comparisons: prompt + chosen + rejected")
    feedback: FileTables | None = Field(
        default=None, description="prompt + completion + label; made from the pairs where it is missing"
    )

    @field_validator(*GIVEN, mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [{"path": one} if isinstance(one, str) else one for one in value]
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_a_table(self) -> FilesRun:
        _need_tables(self)
        return self


class HubRun(Params):
    """One run of `data.hub`: data sets of the Hugging Face Hub, each pinned to a commit."""

    corpus: HubTables | None = Field(default=None, description="texts for a model from scratch, or for ptx")
    chat: HubTables | None = Field(default=None, description="demonstrations: messages, or prompt + completion")
    prompts: HubTables | None = Field(default=None, description="prompts, with an answer where a reward checks it")
    pairs: HubTables | None = Field(default=None, description="comparisons: prompt + chosen + rejected")
    feedback: HubTables | None = Field(
        default=None, description="prompt + completion + label; made from the pairs where it is missing"
    )

    @model_validator(mode="after")
    def _has_a_table(self) -> HubRun:
        _need_tables(self)
        return self


def given_tables(run: FilesRun | HubRun) -> dict[Kind, Source | list[Source]]:
    """The tables that a run names."""
    return {kind: table for kind in GIVEN if (table := getattr(run, kind)) is not None}


def listed_sources(run: FilesRun | HubRun) -> dict[str, tuple[Kind, Source]]:
    """Every source of a run by its key: `chat`, or `chat.0` and `chat.1`."""
    found: dict[str, tuple[Kind, Source]] = {}
    for kind, table in given_tables(run).items():
        found |= {key: (kind, source) for key, source in numbered(kind, table).items()}
    return found


def _need_tables(run: FilesRun | HubRun) -> None:
    """Refuse a run without a table, weights that some sources lack, and shares that would divide one problem."""
    tables = given_tables(run)
    if not tables:
        raise ValueError(f"it names no table. Give it one of: {', '.join(GIVEN)}")
    for kind, table in tables.items():
        weights = {key: source.weight for key, source in numbered(kind, table).items()}
        lacking = [key for key, weight in weights.items() if weight is None]
        if 0 < len(lacking) < len(weights):
            raise ValueError(f"{lacking[0]} has no weight, and others have. Give every source one, or none")
    sources = listed_sources(run)
    for share in ("heldout_share", "test_share"):
        _need_one_share(share, {key: getattr(one, share) for key, (kind, one) in sources.items() if kind != "corpus"})
        _need_one_share(share, {key: getattr(one, share) for key, (kind, one) in sources.items() if kind == "corpus"})


def _need_one_share(share: str, found: dict[str, float]) -> None:
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{key}.{share} = {value:g}" for key, value in found.items())
        raise ValueError(
            f"{shown}: a problem of two tables would be in different splits. Write the same {share} for each of "
            "them, or give unrelated tables runs of their own"
        )


def file_tables(run: str) -> Tables:
    """The tables of one run of `data.files`."""
    where = f"data.files.{run}"
    params = load(FilesRun, where)
    root = Path(params.path)
    if not root.is_dir():
        what = "is a file" if root.is_file() else "folder not found"
        fix = "Give the folder, and name its files: chat: demonstrations.jsonl"
        raise ParamsError(what=what, where=f"{where}.path = {params.path} (params.yaml)", fix=fix)
    return _loaded(params, where, root, outside_workspace=params.outside_workspace)


def hub_tables(run: str) -> Tables:
    """The tables of one run of `data.hub`."""
    where = f"data.hub.{run}"
    return _loaded(load(HubRun, where), where, Path(), outside_workspace=False)


def _loaded(params: FilesRun | HubRun, where: str, root: Path, *, outside_workspace: bool) -> Tables:
    """The tables of a run, with the feedback that pairs are where none is given; what is wrong with any of them."""
    tables: Tables = {}
    errors: list[PosttrainError] = []
    for kind, source in given_tables(params).items():
        # the rejected rows are put outside data/, so that no output is half-written
        rejected = Path("rejected") / where.rpartition(".")[2] / f"{kind}.parquet"
        try:
            tables[kind] = load_table(
                source, kind, f"{where}.{kind}", root, outside_workspace=outside_workspace, table=rejected
            )
        except PosttrainError as error:
            errors.append(error)
    if len(errors) > 1:
        listed = "\n".join(map(str, errors))
        raise DataError(what=f"{len(errors)} tables are refused", where=where, fix=f"Fix these:\n{listed}")
    if errors:
        raise errors[0]
    if "pairs" in tables and "feedback" not in tables:
        tables["feedback"] = unpaired(tables["pairs"])
    return tables


def unpaired(pairs: pl.DataFrame) -> pl.DataFrame:
    """Chosen answers as liked and rejected ones as not."""
    sides = [
        pairs.select("split", "problem", "prompt", completion=side, label=pl.lit(value))
        for side, value in (("chosen", True), ("rejected", False))
    ]
    return with_ids(pl.concat(sides), "feedback").unique("id", maintain_order=True)
