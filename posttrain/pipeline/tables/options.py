"""The settings of the user's own table: the location of its rows and their conversion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from posttrain.pipeline.tables.readers import CsvDialect
from posttrain.pipeline.tables.source_columns import ColumnOptions
from posttrain.pipeline.tables.user_splits import SplitOptions
from posttrain.settings.params import ONE, SEVERAL, Params

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


MOST_DROPPED: Final = 0.05
"""The default largest share of rows that `bad_rows: drop` may leave out."""


class DropRows(Params):
    """Leave out rows that violate a rule, up to a share."""

    drop: float = Field(MOST_DROPPED, ge=0, le=1, description="maximum share of a source's rows that may be left out")


def _bad_rows_form(value: Any) -> str:
    return SEVERAL if isinstance(value, dict | DropRows) else ONE


BadRows = Annotated[
    Annotated[Literal["stop", "drop"], Tag(ONE)] | Annotated[DropRows, Tag(SEVERAL)], Discriminator(_bad_rows_form)
]
BAD_ROWS: Final = (
    f"What to do with rows that break the table's rules: stop, drop up to {MOST_DROPPED:g} of them, or {{drop: SHARE}}"
)


def most_dropped(bad_rows: BadRows) -> float | None:
    """Return the maximum share of rows that may be left out; None if no row may be left out."""
    if isinstance(bad_rows, DropRows):
        return bad_rows.drop
    return MOST_DROPPED if bad_rows == "drop" else None


class ReadOptions(ColumnOptions, SplitOptions):
    """Settings for reading the user's table."""

    weight: float | None = Field(
        default=None, gt=0, description="In a list of sources: this source's share of the training rows"
    )
    limit: int | None = Field(default=None, ge=1, description="Read only this many rows of each split of the source")
    bad_rows: BadRows = Field(default="stop", description=BAD_ROWS)

    @property
    def place(self) -> str:
        """Its name in a printed line."""
        return "the table"


class FileTable(ReadOptions):
    """A table in the user's files."""

    path: str = Field(
        min_length=1,
        description="A parquet, jsonl, json, csv or arrow file, a folder of such files, or a pattern: part-*.jsonl",
    )

    separator: str | None = Field(
        default=None, description='csv: the separator between cells, one character, e.g. ";" or "\\t"; null: a comma'
    )
    encoding: str | None = Field(
        default=None, description="csv: e.g. cp1252 or utf-16, as Excel writes them; null: UTF-8"
    )

    @field_validator("separator")
    @classmethod
    def _is_one_character(cls, separator: str | None) -> str | None:
        if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
            raise ValueError(f'{separator!r} is not one character, such as ";". Write a tab as "\\t"')
        return separator

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str | None) -> str | None:
        if encoding is not None:
            try:
                if "\\".encode(encoding).decode(encoding) != "\\" or "\\n".encode("ascii").decode(encoding) == "\n":
                    raise LookupError(encoding)  # it reads escapes, which is no encoding of a file
            except (LookupError, ValueError) as error:
                raise ValueError(f"{encoding[:40]!r} is not an encoding of Python. Use e.g. cp1252") from error
        return encoding

    @property
    def dialect(self) -> CsvDialect:
        """The format of its csv files."""
        return CsvDialect(self.separator, self.encoding)

    @field_validator("path")
    @classmethod
    def _is_a_pattern(cls, path: str) -> str:
        if any("**" in part and part != "**" for part in Path(path).parts):
            raise ValueError(f"in {path}, ** must stand for a whole folder, e.g. **/*.jsonl")
        return path

    @property
    def place(self) -> str:
        """Its name in a printed line."""
        return self.path


class HubTable(ReadOptions):
    """A table in a data set on the Hub."""

    name: str = Field(min_length=1, description="The data set's name on the Hub, e.g. org/name")
    config: str | None = Field(default=None, min_length=1, description="The data set's configuration")
    revision: str = Field(description="The data set's commit, 40 hexadecimal digits")

    @field_validator("name")
    @classmethod
    def _on_the_hub(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name, re.ASCII):
            raise ValueError("not a name on the Hub such as org/name; use data.files for local data")
        return name

    @field_validator("revision")
    @classmethod
    def _pinned(cls, revision: str) -> str:
        if not _COMMIT.fullmatch(revision):
            raise ValueError("must be a commit of 40 hexadecimal digits, because a tag or branch can move")
        return revision

    @property
    def place(self) -> str:
        """Its name in a printed line."""
        return self.name if self.config is None else f"{self.name} {self.config}"


def _form(value: Any) -> str:
    return SEVERAL if isinstance(value, list) else ONE


Source = FileTable | HubTable
FileTables = Annotated[
    Annotated[FileTable, Tag(ONE)] | Annotated[list[FileTable], Field(min_length=1), Tag(SEVERAL)],
    Discriminator(_form),
]
HubTables = Annotated[
    Annotated[HubTable, Tag(ONE)] | Annotated[list[HubTable], Field(min_length=1), Tag(SEVERAL)],
    Discriminator(_form),
]


def numbered_sources(key: str, table: Source | Sequence[Source]) -> dict[str, Source]:
    """Return the sources of a table by key: `chat`, or `chat.0` and `chat.1` for a list."""
    return (
        {key: table} if isinstance(table, Source) else {f"{key}.{index}": source for index, source in enumerate(table)}
    )
