"""Examples over rows of tokens that stay in their file. Only a batch's rows become lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
from pydantic import Field

from posttrain.errors import DataError
from posttrain.rollout import TokenRow
from posttrain.settings.params import Params
from posttrain.train.batch_sources import Example
from posttrain.train.token_cache import Array, Rows


class RowLimit(Params):
    """The maximum length of a row, and the treatment of longer rows."""

    max_tokens: int = Field(256, ge=8, description="maximum tokens of a row, including prompt and template")
    long_rows: Literal["drop", "cut"] = Field(
        "drop", description="drop longer rows, or cut them at the end; a line reports how many"
    )


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Example i has the rows `places[starts[i]:starts[i + 1]]`. Each column has a value per row."""

    rows: Rows
    places: Array
    starts: Array
    columns: dict[str, Array] = field(default_factory=dict)
    longest: int | None = None
    """Rows are cut to this many tokens."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        """Return one example, or several as `Examples`."""
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        number = range(len(self))[index]
        span = slice(int(self.starts[number]), int(self.starts[number + 1]))
        rows = [shortened(self.rows.row(int(place)), self.longest) for place in self.places[span]]
        return Example(rows, {name: values[span].tolist() for name, values in self.columns.items()})

    def select(self, chosen: Array) -> Examples:
        """Return the examples with these indices, in this order."""
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], sizes)
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, places=self.places[rows], starts=starts, columns=columns)

    @property
    def tokens(self) -> Array:
        """The number of tokens of each example, all its rows together."""
        total: Array = np.add.reduceat(self._sizes, self.starts[:-1])
        return total

    @property
    def trained_tokens(self) -> int:
        """The number of trained tokens, by the mask or all after the prompt."""
        rows = (row for example in self for row in example.rows)
        return sum(len(row.rest) if row.mask is None else sum(row.mask) for row in rows)

    @property
    def longest_mismatched(self) -> int:
        """Maximum number of tokens of any prompt combined with any answer (KTO)."""
        prompts = self.rows.prompt_sizes[self.places]
        return int(prompts.max() + (self._sizes - prompts).max())

    def limited(self, limit: RowLimit, where: str, context: int | None = None) -> Examples:
        """Return the examples that fit max_tokens and the model's context. Print how many were cut or dropped."""
        if not len(self):
            raise DataError(what="a split has no rows to train on", where=where, fix="Give it rows")
        most, named = limit.max_tokens, f"max_tokens = {limit.max_tokens}"
        if context is not None and context < most:
            most, named = context, f"the model's context of {context} tokens ({named})"
        whole = self._sizes
        long = np.maximum.reduceat(whole, self.starts[:-1]) > most
        if not long.any():
            return self
        cut = replace(self, longest=most) if limit.long_rows == "cut" else self
        fitting = ~long if limit.long_rows == "drop" else ~long | cut._trained_after_cut(long)
        if not fitting.any():
            fix = "Raise max_tokens or shorten the data" if most == limit.max_tokens else "Shorten the data"
            raise DataError(what=f"all {len(self):,} rows are longer than {named}", where=where, fix=fix)
        shown = f"{most} tokens" if most == limit.max_tokens else named
        longer = f"{int(long.sum()):,} of {len(self):,} rows are longer than {shown}"
        left = int((~fitting).sum())
        if limit.long_rows == "drop":
            print(f"{where}: {longer}: left out")
        else:
            print(
                f"{where}: {longer}: {int(long.sum()) - left:,} cut, {left:,} dropped because no answer would be left"
            )
        return cut.select(np.flatnonzero(fitting))

    def _trained_after_cut(self, long: Array) -> Array:
        """Tell whether every row of an example still has a trained token."""
        return np.array([not isn or all(row.trained for row in self[number].rows) for number, isn in enumerate(long)])

    @property
    def _sizes(self) -> Array:
        """Return the number of tokens of each row."""
        sizes = self.rows.prompt_sizes[self.places] + self.rows.rest_sizes[self.places]
        return sizes if self.longest is None else np.minimum(sizes, self.longest)


def shortened(row: TokenRow, longest: int | None) -> TokenRow:
    """Return a row cut at its end to this many tokens. Its prompt is never cut."""
    if longest is None or len(row) <= longest:
        return row
    rest = max(longest - len(row.prompt), 0)
    return TokenRow(row.prompt, row.rest[:rest], None if row.mask is None else row.mask[:rest])


def make_examples(rows: Rows, columns: dict[str, Any] | None = None) -> Examples:
    """Return an example for each row of the table, in the same order."""
    return Examples(rows, np.arange(len(rows.rest_sizes)), rows.starts, columns or {})
