"""A row of an algorithm table: a name, where it comes from, the formula, and the settings in which it differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posttrain.choices import lay
from posttrain.params import Params


@dataclass(frozen=True)
class Row:
    """One algorithm; the table that it stands in binds it to the model that types its settings."""

    name: str
    paper: str
    formula: str
    values: Mapping[str, Any]
    model: type[Params] = Params

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's settings as plain data with some replaced, before they are typed."""
        return lay(self.model, self.values, over)

    def settings(self, **over: Any) -> Any:
        """The row's settings with some replaced."""
        return self.model.model_validate(self.laid(over))


def table(model: type[Params], rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by name, bound to the model of their settings."""
    return {row.name: replace(row, model=model) for row in rows}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of each leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
