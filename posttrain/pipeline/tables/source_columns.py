"""Turn a source's columns into a layout's columns: rename, fill a template, or store in `info`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any

from pydantic import Field, field_validator, model_validator

from posttrain.data.columns import Kind
from posttrain.data.shown import short_repr
from posttrain.data.turns import RowError
from posttrain.errors import DataError, excerpt
from posttrain.settings.params import Params, did_you_mean, nearest


class Range(Params):
    """Numbers from `min` to `max`, both included."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _has_an_end(self) -> Range:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both, or a list of values")
        return self


class ColumnOptions(Params):
    """The conversion of a source's columns into a layout's columns."""

    rename: dict[str, str] = Field(default={}, description="Columns to rename: the source's name -> the layout's name")
    template: dict[str, str] = Field(
        default={}, description="A layout's column -> its text, with the source's columns in braces, e.g. '{a} and {b}'"
    )
    info: list[str] = Field(default=[], description="Columns of the source that a prompts table stores in `info`")
    values: dict[str, dict[str, bool | int | float | str]] = Field(
        default={}, description="A layout's column -> the meaning of its values, e.g. label: {up: true, down: false}"
    )
    where: dict[str, Range | list[bool | int | float | str]] = Field(
        default={},
        description="Read only rows whose source column has one of these values, or lies within {min: ..., max: ...}",
    )

    @field_validator("template")
    @classmethod
    def _readable(cls, template: dict[str, str]) -> dict[str, str]:
        for text in template.values():
            _parsed(text)
        return template

    @model_validator(mode="after")
    def _one_source(self) -> ColumnOptions:
        twice = sorted({*self.rename.values()} & {*self.template, *(["info"] if self.info else [])})
        if twice:
            raise ValueError(f"the column '{twice[0]}' is created twice, once by `rename`. Remove one of them")
        return self

    @property
    def plain(self) -> bool:
        """True if the source's columns stay unchanged."""
        return not (self.rename or self.template or self.info or self.values)

    @property
    def read(self) -> frozenset[str]:
        """The source columns used by these settings."""
        named = (name for text in self.template.values() for _, name in _parsed(text) if name is not None)
        return frozenset({*self.rename, *self.info, *self.where, *named})

    def use_of(self, column: str) -> str:
        """Return the setting that needs a column of the source, as text."""
        if column in self.where:
            return "for `where`"
        return "to rename" if column in self.rename else "to put into info" if column in self.info else "for a template"

    def suggestion(self, column: str, known: Sequence[str]) -> str:
        """Return a suggestion for a name that is not a source column. `rename` may be the wrong way round."""
        if near := nearest(column, known):
            return f"Did you mean '{near}'?"
        if near := nearest(self.rename.get(column, ""), known):
            return f"Did you mean rename: {{{near}: {column}}}? Your column comes first"
        return "Name one of these"

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a source row has the values in `where`. Rows without such a column do not match."""
        return all(_matches(row.get(name), wanted, name) for name, wanted in self.where.items())

    def check(self, kind: Kind, known: Collection[str], where: str) -> None:
        """Reject columns that this kind of table does not have."""
        if self.info and kind != "prompts":
            what, fix = f"a '{kind}' table has no column info", "Remove it; only prompts have it, for rewards"
            raise DataError(what=what, where=f"{where}.info", fix=fix)
        for option, named in (("template", self.template), ("values", self.values)):
            unknown = next((name for name in named if name not in known), None)
            if unknown is not None:
                what = f"a '{kind}' table has no column '{unknown}'"
                raise DataError(what=what, where=f"{where}.{option}", fix=did_you_mean(unknown, sorted(known)))

    def apply(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with the layout's columns."""
        columns = {self.rename.get(name, name): value for name, value in row.items()}
        columns |= {target: _fill_template(target, text, row) for target, text in self.template.items()}
        for name, meanings in self.values.items():
            if columns.get(name) is not None:
                columns[name] = _meaning(name, columns[name], meanings)
        return {**columns, "info": {name: row.get(name) for name in self.info}} if self.info else columns


def _matches(value: Any, wanted: Range | list[Any], name: str) -> bool:
    if value is None:
        return False
    if isinstance(wanted, list):
        return _as_text(value) in map(_as_text, wanted)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RowError(f"'{name}' is {short_repr(value)}, not a number, and `where` has min or max for it") from error
    return (wanted.min is None or number >= wanted.min) and (wanted.max is None or number <= wanted.max)


def _meaning(name: str, value: Any, meanings: Mapping[str, Any]) -> Any:
    """Return the meaning of a value, or of each value in a list, from `values`."""
    if isinstance(value, list):
        return [_meaning(name, one, meanings) for one in value]
    key = _as_text(value)
    if key not in meanings:
        known = ", ".join(meanings)
        raise RowError(f"'{name}' is {short_repr(value)}, which `values` does not name (it has {known}); add it")
    return meanings[key]


def _as_text(value: Any) -> str:
    """Return a value as YAML and csv write it, so that 1 and '1', true and 'true' are equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _parsed(text: str) -> tuple[tuple[str, str | None], ...]:
    """Return the pieces of plain text, each with the column after it."""
    pieces = list(Formatter().parse(text))
    if any(form or change for _, _, form, change in pieces) or any(
        name is not None and (not name or set(name) & set(".[]")) for _, name, _, _ in pieces
    ):
        raise ValueError(
            f"{excerpt(text, 80)}: braces may contain only the name of a column. Write {{{{ for a plain brace"
        )
    return tuple((before, name) for before, name, _, _ in pieces)


def _fill_template(target: str, text: str, row: Mapping[str, Any]) -> str:
    """Return the template with the row's values: texts unchanged, lists of texts line by line, others as JSON."""
    filled = ""
    for before, name in _parsed(text):
        filled += before
        if name is None:
            continue
        value = row.get(name)
        if value is None:
            raise RowError(f"'{name}' is missing or null, but the template of '{target}' needs it; fill it in")
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = "\n".join(value)
        try:
            filled += value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except TypeError as error:
            raise RowError(f"'{name}' is of the type {type(value).__name__}; give a text or a number") from error
    return filled
