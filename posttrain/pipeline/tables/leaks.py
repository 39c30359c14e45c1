"""Find training rows in any table whose question is a test prompt, ignoring case, spaces and system turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.data.columns import Kind
from posttrain.data.parquet import DECODE_ERRORS
from posttrain.errors import excerpt
from posttrain.pipeline.workspace import table_path

KINDS: Final[tuple[Kind, ...]] = ("corpus", "chat", "prompts", "pairs", "feedback")
LONG: Final = 20
"""A shorter question may appear in a text by chance."""
_ASKED: Final[Mapping[Kind, str]] = {"corpus": "text", "chat": "messages"}
"""The column with a row's question; `prompt` in other tables."""


@dataclass(frozen=True)
class Leak:
    """A training table, and the test prompts among its training rows."""

    table: str
    rows: int
    against: str
    """The table of the test prompts; if there are several, the one with the most."""
    example: str

    def __str__(self) -> str:
        run, kind = self.table.split("/")
        rows = f"{self.rows:,} training row{'s have' if self.rows > 1 else ' has'} the question of a test prompt"
        name = f"{run}_{kind}_clean"
        clean = f"data.filters: {{{name}: {{data: {self.table}, against: {self.against}, reward_model: none}}}}"
        if kind == "corpus":
            texts = f"{self.rows:,} training text{'s hold' if self.rows > 1 else ' holds'} a test prompt"
            alike = f"of {self.against}, but for case and spaces, e.g. {excerpt(self.example, 60)}"
            return f"{self.table}: {texts} {alike}. Remove them from its source"
        return (
            f"{self.table}: {rows} of {self.against}, but for case, spaces or a system turn, e.g. "
            f"{excerpt(self.example, 60)}. Leave them out by {clean}, and let runs read {name}/{kind}"
        )

    @property
    def plain(self) -> dict[str, Any]:
        """The leak as JSON data."""
        return asdict(self)


def leaks(training: Mapping[str, pl.DataFrame], tests: Mapping[str, pl.DataFrame]) -> list[Leak]:
    """Return the tables with training rows that are test prompts. Keys are names such as mine/chat."""
    asked = {name: _questions(frame.filter(split="test"), _kind(name))[1] for name, frame in tests.items()}
    results = []
    for name, frame in training.items():
        train = frame.filter(split="train")
        first, whole = _questions(train, _kind(name))
        hit = {other: _holds(_kind(name), first, whole, keys) for other, keys in asked.items()}
        counts = {other: int(rows.sum()) for other, rows in hit.items() if rows.any()}
        if counts:
            every = pl.select(pl.any_horizontal(*(hit[other] for other in counts))).to_series()
            most = max(counts, key=lambda other: counts[other])
            results.append(Leak(name, int(every.sum()), most, whole.filter(every)[0]))
    return results


def _holds(kind: Kind, first: pl.Series, whole: pl.Series, keys: pl.Series) -> pl.Series:
    """Return which rows have one of these questions. A corpus text may contain it anywhere, if it is long enough."""
    if kind == "corpus":
        long = keys.filter(keys.str.len_chars() >= LONG)
        return whole.str.contains_any(long.unique().to_list()) if len(long) else whole.is_in(keys.implode())
    return first.is_in(keys.implode()) | whole.is_in(keys.implode())


def leaks_of(names: Sequence[str], every: Iterable[str]) -> list[Leak]:
    """Return the leaks among tables under data/: training tables against the test prompts of all tables."""
    return leaks(_read(names), _read(name for name in every if _kind(name) == "prompts"))


def _read(names: Iterable[str]) -> dict[str, pl.DataFrame]:
    tables = {}
    for name in names:
        if (file := table_path(name)).is_file():
            try:
                tables[name] = pl.read_parquet(file, columns=["split", _ASKED.get(_kind(name), "prompt")])
            except DECODE_ERRORS:  # a damaged table stops the runs that read it, with an error of their own
                continue
    return tables


def tables_under(folder: Path) -> list[str]:
    """Return the names of all tables in a folder, e.g. mine/chat."""
    files = sorted(folder.glob("*/*.parquet"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.stem in KINDS]


def _kind(name: str) -> Kind:
    return next(kind for kind in KINDS if name.endswith(f"/{kind}"))


def _questions(frame: pl.DataFrame, kind: Kind) -> tuple[pl.Series, pl.Series]:
    """Return each row's first user turn, and all its user turns, in lower case and with single spaces."""
    if kind == "corpus":
        first = whole = pl.col("text")
    else:
        of_user = pl.element().filter(pl.element().struct.field("role") == "user").struct.field("content")
        said = pl.col(_ASKED.get(kind, "prompt")).list.eval(of_user)
        first, whole = said.list.first(), said.list.join("\n")
    questions = frame.select(first=first.fill_null(""), whole=whole)
    return without_case(questions["first"]), without_case(questions["whole"])


def without_case(texts: pl.Series) -> pl.Series:
    """Return texts in lower case (STRASSE equals Straße) with single spaces."""
    folded = texts.map_elements(str.casefold, return_dtype=pl.String)
    return folded.str.replace_all(r"\s+", " ").str.strip_chars()
