"""How the source's columns become those of a layout: renamed, put together by a template, or kept as `info`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from string import Formatter
from typing import Any

from pydantic import Field, field_validator, model_validator

from posttrain.errors import DataError
from posttrain.params import Params, did_you_mean
from posttrain.tables.columns import Kind
from posttrain.tables.turns import OddRowError


class ColumnOptions(Params):
    """How the source's columns become those of a layout."""

    rename: dict[str, str] = Field(default={}, description="Columns to rename, the source's name: the layout's name")
    template: dict[str, str] = Field(
        default={}, description="A layout's column: its text, with the source's columns in braces, e.g. '{a} and {b}'"
    )
    info: list[str] = Field(default=[], description="Columns of the source that a prompts table keeps as `info`")

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
            raise ValueError(f"'{twice[0]}' is made twice, by 'rename' and otherwise. Keep one of them")
        return self

    @property
    def plain(self) -> bool:
        """Whether the source's columns stay as they are."""
        return not (self.rename or self.template or self.info)

    @property
    def read(self) -> frozenset[str]:
        """The source's columns that are named here."""
        named = (name for text in self.template.values() for _, name in _parsed(text) if name is not None)
        return frozenset({*self.rename, *self.info, *named})

    def use_of(self, column: str) -> str:
        """What a column of the source is named for."""
        return "to rename" if column in self.rename else "to keep as info" if column in self.info else "for a template"

    def check(self, kind: Kind, known: Collection[str], where: str) -> None:
        """Refuse what this kind of table has no place for."""
        if self.info and kind != "prompts":
            what, fix = f"a '{kind}' table has no column info", "Leave it out; only prompts keep it, for rewards"
            raise DataError(what=what, where=f"{where}.info", fix=fix)
        odd = next((name for name in self.template if name not in known), None)
        if odd is not None:
            what = f"'{odd}' is not a column of a layout of a '{kind}' table"
            raise DataError(what=what, where=f"{where}.template", fix=did_you_mean(odd, sorted(known)))

    def shaped(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with the layout's columns."""
        found = {self.rename.get(name, name): value for name, value in row.items()}
        found |= {target: _filled(target, text, row) for target, text in self.template.items()}
        return {**found, "info": {name: row.get(name) for name in self.info}} if self.info else found


@cache
def _parsed(text: str) -> tuple[tuple[str, str | None], ...]:
    """Pieces of plain text, each with the column that follows it."""
    pieces = list(Formatter().parse(text))
    if any(form or change for _, _, form, change in pieces) or any(
        name is not None and (not name or set(name) & set(".[]")) for _, name, _, _ in pieces
    ):
        raise ValueError(f"{text!r:.80}: braces hold the name of a column and nothing else. Write {{{{ for a brace")
    return tuple((before, name) for before, name, _, _ in pieces)


def _filled(target: str, text: str, row: Mapping[str, Any]) -> str:
    """The template with the row's values: texts as they are, a list of texts line by line, others as JSON."""
    filled = ""
    for before, name in _parsed(text):
        filled += before
        if name is None:
            continue
        value = row.get(name)
        if value is None:
            raise OddRowError(f"'{name}' is missing or null, and the template of '{target}' needs it; fill it in")
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = "\n".join(value)
        try:
            filled += value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except TypeError as error:
            raise OddRowError(f"'{name}' is of the type {type(value).__name__}; give a text or a number") from error
    return filled
