"""Data given by a parameter: a file or folder of the workspace, or a Hub data set, as one of our tables."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import polars as pl
from pydantic import Field, model_validator

from posttrain.errors import DataError
from posttrain.measure.phases import phase
from posttrain.params import Params, did_you_mean
from posttrain.tables.columns import SPLITS, Kind, Split
from posttrain.tables.failures import rejected_rows, row_failures, structure_failures
from posttrain.tables.identity import content_ids, with_ids
from posttrain.tables.layouts import to_columns
from posttrain.tables.parquet import DECODE_ERRORS, decode
from posttrain.tables.splits import split_of
from posttrain.workspace import any_leads_out

_LOG: Final = logging.getLogger(__name__)

_SPLIT_NAMES: Final[dict[str, Split]] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("heldout", "validation", "valid", "val", "dev", "eval"), "heldout"),
    "test": "test",
}


class GivenParams(Params):
    """Where one table comes from, and how it becomes ours."""

    path: str | None = Field(
        default=None, min_length=1, description="A parquet, jsonl, json or csv file, or a folder of them"
    )
    hub: str | None = Field(
        default=None, min_length=1, description="A data set of the Hub, or a local folder that is one"
    )
    config: str | None = Field(default=None, min_length=1, description="The Hub data set's configuration")
    revision: str | None = Field(
        default=None, min_length=1, description="The Hub data set's commit or tag; pin it to repeat a run"
    )
    splits: dict[Split, str] = Field(
        default={}, description="Our split: the source's name of it; by default names like validation"
    )
    rename: dict[str, str] = Field(default={}, description="Columns to rename, the source's name: the layout's name")
    limit: int | None = Field(default=None, ge=1, description="Take only so many rows of each of the source's splits")
    heldout_share: float = Field(
        default=0.05, gt=0, lt=0.5, description="Taken from train by hash if the source has no heldout"
    )
    test_share: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Taken from train by hash if the source has no test; no table but prompts keeps it",
    )
    bad_rows: Literal["stop", "drop"] = Field(
        default="stop", description="What to do with rows that break the table's rules"
    )
    outside_workspace: bool = Field(
        default=False, description="Let `path`, or a folder as `hub`, lead out of the workspace"
    )

    @model_validator(mode="after")
    def _one_place(self) -> GivenParams:
        if (self.path is None) == (self.hub is None):
            raise ValueError("name one of 'path' and 'hub'")
        if self.path is not None and (self.config is not None or self.revision is not None):
            raise ValueError("'config' and 'revision' belong to 'hub'; remove them beside 'path'")
        return self


@phase("load")
def load_table(
    params: GivenParams, kind: Kind, section: str, root: Path = Path(), *, outside: bool = False
) -> pl.DataFrame:
    """The given data as a table of `kind`, with ids and splits; `section` names the parameters in errors."""
    if params.path:
        params = params.model_copy(update={"path": str(root / params.path), "outside_workspace": outside})
    where = f"{section} ({params.path or params.hub})"
    raw = {name: frame.rename(_renames(params, frame, where)) for name, frame in _read(params, where).items()}
    named = _named_splits(raw, params, where)
    parts = {split: to_columns(_limited(frame, params), kind, where) for split, frame in named.items()}
    table = with_ids(_with_split(parts, params, kind), kind)
    _check_splits(table, kind, where)
    return _kept(table, kind, where) if params.bad_rows == "drop" else table


def load_pairs(params: GivenParams, section: str = "pairs.given") -> pl.DataFrame:
    """Given preference pairs."""
    return load_table(params, "pairs", section)


def load_feedback(params: GivenParams, section: str = "pairs.given") -> pl.DataFrame:
    """Given answers with a thumb up or down."""
    return load_table(params, "feedback", section)


def _read(params: GivenParams, where: str) -> dict[str, pl.DataFrame]:
    """The source's frames by the source's names of its splits."""
    place = Path(params.path or params.hub or "")
    if not params.outside_workspace and (params.path is not None or place.exists()) and any_leads_out(place):
        mend = "Copy the data into the workspace, or set outside_workspace: true"
        raise DataError(what="the path leads out of the workspace", where=where, mend=mend)
    if params.hub is not None:
        return _read_hub(params, params.hub, where)
    if place.is_file():
        return {"train": _read_file(place, where)}
    if not place.is_dir():
        raise DataError(what="there is no such file or folder", where=where, mend="Mend 'path'")
    return _read_folder(place, where)


def _read_folder(folder: Path, where: str) -> dict[str, pl.DataFrame]:
    """Files are joined by the first word of their names: `train-00000-of-00002.parquet` belongs to `train`."""
    files = sorted(file for file in folder.iterdir() if file.suffix in _READERS)
    if not files:
        mend = f"Put files there that end in {', '.join(_READERS)}"
        raise DataError(what="the folder has no data files", where=where, mend=mend)
    groups: dict[str, list[pl.DataFrame]] = {}
    for file in files:
        groups.setdefault(file.stem.split("-")[0].split(".")[0], []).append(_read_file(file, where))
    if not set(groups) & set(_SPLIT_NAMES):
        groups = {"train": [frame for frames in groups.values() for frame in frames]}
    try:
        return {name: pl.concat(frames) for name, frames in groups.items()}
    except pl.exceptions.PolarsError as error:
        what = f"the files do not have the same columns ({_first_line(error)})"
        raise DataError(what=what, where=where, mend="Give files of one layout") from error


def _read_file(file: Path, where: str) -> pl.DataFrame:
    reader = _READERS.get(file.suffix)
    if reader is None:
        mend = f"Give a file that ends in {', '.join(_READERS)}"
        raise DataError(what=f"'{file.suffix}' is no known kind of file", where=where, mend=mend)
    try:
        frame = reader(file)
    except DECODE_ERRORS as error:
        what = f"{file} cannot be read as {file.suffix[1:]} ({_first_line(error)})"
        raise DataError(what=what, where=where, mend="Mend the file") from error
    if frame.is_empty():
        raise DataError(what=f"{file} has no rows", where=where, mend="Give it rows or remove it")
    return frame


def _read_hub(params: GivenParams, hub: str, where: str) -> dict[str, pl.DataFrame]:
    # imported here because only given data needs it and it takes most of a second
    import datasets

    try:
        loaded = datasets.load_dataset(hub, params.config, revision=params.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        what = f"the data set cannot be loaded ({_first_line(error)})"
        raise DataError(
            what=what, where=where, mend="Check its name and the network, or give a local 'path'"
        ) from error
    return {str(name): part.to_polars() for name, part in loaded.items()}


def _renames(params: GivenParams, frame: pl.DataFrame, where: str) -> Mapping[str, str]:
    for old, new in params.rename.items():
        if old not in frame.columns:
            mend = did_you_mean(old, frame.columns)
            raise DataError(what=f"'rename' names the column '{old}', which there is not", where=where, mend=mend)
        if new in frame.columns and new not in params.rename:
            what = f"'rename' turns '{old}' into '{new}', which there is already"
            raise DataError(what=what, where=where, mend=f"Rename '{new}' too")
    twice = [name for name, count in Counter(params.rename.values()).items() if count > 1]
    if twice:
        what = f"'rename' turns two columns into '{twice[0]}'"
        raise DataError(what=what, where=where, mend="Give each a name of its own")
    return params.rename


def _named_splits(raw: Mapping[str, pl.DataFrame], params: GivenParams, where: str) -> dict[Split, pl.DataFrame]:
    wanted: dict[Split, str] = dict(params.splits)
    if not wanted:
        for name in raw:
            if name in _SPLIT_NAMES:
                wanted.setdefault(_SPLIT_NAMES[name], name)
    missing = [name for name in wanted.values() if name not in raw]
    if missing or "train" not in wanted:
        what = f"there is no split '{missing[0]}'" if missing else "no split is named train"
        mend = f"The source has {', '.join(raw)}. Name them, e.g. splits: {{train: {next(iter(raw))}}}"
        raise DataError(what=what, where=where, mend=mend)
    return {split: raw[name] for split, name in wanted.items()}


def _limited(frame: pl.DataFrame, params: GivenParams) -> pl.DataFrame:
    return frame if params.limit is None else frame.head(params.limit)


def _with_split(parts: Mapping[Split, pl.DataFrame], params: GivenParams, kind: Kind) -> pl.DataFrame:
    """The source's own splits, and those that it lacks by hash from its train split."""
    own = dict(parts)
    if "test" not in SPLITS[kind] and "test" in own:
        test = own.pop("test")
        own.setdefault("heldout", test)
    key = pl.Series("key", content_ids(own["train"], ["text"])) if kind == "corpus" else own["train"]["problem"]
    shares = {
        "heldout_share": 0.0 if "heldout" in own else params.heldout_share,
        "test_share": 0.0 if "test" in own or kind == "corpus" else params.test_share,
    }
    splits = [split_of(problem or "", **shares) for problem in key]
    train = own.pop("train").with_columns(split=pl.Series(splits, dtype=pl.String()))
    rest = [own[split].with_columns(split=pl.lit(split)) for split in SPLITS[kind] if split in own]
    return pl.concat([train, *rest]).filter(pl.col("split").is_in(SPLITS[kind]))


def _check_splits(table: pl.DataFrame, kind: Kind, where: str) -> None:
    counts = dict(table["split"].value_counts().rows())
    for split in SPLITS[kind]:
        if not counts.get(split):
            what = f"of {table.height} rows none is in the split '{split}'"
            mend = (
                f"Give more rows, raise {'heldout' if split == 'train' else split}_share, or name a split of the source"
            )
            raise DataError(
                what=what, where=where, mend=mend if split != "train" else "Lower heldout_share and test_share"
            )


def _kept(table: pl.DataFrame, kind: Kind, where: str) -> pl.DataFrame:
    """The rows that keep the rules, the first of equal ones."""
    unique = table.unique("id", keep="first", maintain_order=True)
    if structure_failures(unique, kind):
        return unique
    failures = row_failures(unique, kind)
    if not failures and unique.height == table.height:
        return unique
    bad = rejected_rows(unique, failures)["row"] if failures else pl.Series("row", [], dtype=pl.UInt32())
    kept = unique.with_row_index("row").filter(~pl.col("row").is_in(bad.implode())).drop("row")
    doubles = table.height - unique.height
    _LOG.warning(
        "%s: left out %d of %d rows, %d of them doubles", where, table.height - kept.height, table.height, doubles
    )
    return kept


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _read_csv(file: Path) -> pl.DataFrame:
    # all as text: a reader that guesses makes the number 7 of the answer '007'
    return pl.read_csv(file, infer_schema=False, glob=False)


def _read_lines(file: Path) -> pl.DataFrame:
    return pl.read_ndjson(file, infer_schema_length=None)


def _read_json(file: Path) -> pl.DataFrame:
    return pl.read_json(file, infer_schema_length=None)


_READERS: Final[dict[str, Callable[[Path], pl.DataFrame]]] = {
    ".parquet": decode,
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
}


class FileTable(GivenParams):
    """A file."""


class HubTable(GivenParams):
    """A data set of the Hub."""
