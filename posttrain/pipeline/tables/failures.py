"""Violations of a table's schema, with row, column, value and fix, and the lines of an error.

pandera is only imported for validation, and without pandas, which polars' tables do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from posttrain.data.columns import COLUMNS, OPTIONAL, Kind
from posttrain.data.shown import printable, short_repr
from posttrain.errors import shortened
from posttrain.late_imports import without
from posttrain.settings.params import did_you_mean

if TYPE_CHECKING:
    from pandera.errors import SchemaError

LISTED: Final = 10
NOT_NEEDED: Final = ("pandas", "hypothesis")
"""Packages that pandera imports if they are installed. Together they take twice as long as pandera itself."""


@dataclass(frozen=True)
class Failure:
    """One violated rule. `rows`: the rows that violate it, in order; empty if the table as a whole does."""

    column: str
    rule: str
    rows: pl.Series


def structure_failures(frame: pl.DataFrame, kind: Kind) -> list[str]:
    """Return one sentence for each missing, unknown or misplaced column and each wrong type."""
    return [_structure_sentence(error, frame, kind) for error in _errors(frame.lazy(), kind, "SCHEMA_ONLY")]


def row_failures(frame: pl.DataFrame, kind: Kind) -> list[Failure]:
    """Return every rule that some row violates. The frame must have the right columns."""
    return [_failure(error) for error in _errors(frame, kind, "SCHEMA_AND_DATA")]


def _errors(frame: Any, kind: Kind, depth: Literal["SCHEMA_ONLY", "SCHEMA_AND_DATA"]) -> list[SchemaError]:
    """Return pandera's errors."""
    with without(*NOT_NEEDED):
        from pandera.config import ValidationDepth, config_context
        from pandera.errors import SchemaErrors

        from posttrain.pipeline.tables.schemas import schema_of

        with config_context(validation_enabled=True, validation_depth=ValidationDepth[depth]):
            try:
                schema_of(kind).validate(frame, lazy=True)  # it imports too
            except SchemaErrors as errors:
                return list(errors.schema_errors)
    return []


def rejected_rows(frame: pl.DataFrame, failures: Iterable[Failure]) -> pl.DataFrame:
    """Return the rows that violate a rule, with `row` and `reason` before their columns."""
    parts = [
        pl.DataFrame(
            {
                "row": failure.rows,
                "reason": pl.repeat(f"{failure.column} {failure.rule}", len(failure.rows), eager=True),
            }
        )
        for failure in failures
    ]
    reasons = pl.concat(parts).group_by("row", maintain_order=True).agg(pl.col("reason").str.join("; "))
    # a rejected table may itself have columns of these names, when its own rejected file is read again
    rows = frame.drop("row", "reason", strict=False).with_row_index("row")
    return reasons.sort("row").join(rows, on="row", how="left", maintain_order="left")


def failure_lines(
    frame: pl.DataFrame, failures: Iterable[Failure], place: Callable[[int], str] = "row {}".format
) -> list[str]:
    """Return at most `LISTED` failures, some for every rule, in row order. `place` returns a row's name."""
    listed = sorted(_round_robin(list(failures)), key=lambda pair: (pair[0], list(frame.columns).index(pair[1].column)))
    return [
        f"{place(row)}, {failure.column} = {short_repr(frame[failure.column][row])}: {failure.rule}"
        for row, failure in listed
    ]


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message."""
    text = str(error).strip()
    return printable(shortened(text.splitlines()[0], 200)) if text else type(error).__name__


def _round_robin(failures: list[Failure]) -> Iterator[tuple[int, Failure]]:
    """Yield the first row of every rule, then the second of every rule, and so on, so that no rule hides another."""
    left = LISTED
    for index in range(LISTED):
        for failure in failures:
            if index < len(failure.rows) and left > 0:
                left -= 1
                yield int(failure.rows[index]), failure


def _failure(error: SchemaError) -> Failure:
    check = error.check
    rule = "must not be null or NaN; fill it in or drop the row" if isinstance(check, str) else str(check.error)
    if error.check_output is None:  # the rule itself raised: a bug in the rule, not in the table
        raise RuntimeError(f"the rule '{rule}' of column '{error.column_name}' failed to run: {error}")
    passed = error.check_output.to_series()
    return Failure(column=str(error.column_name), rule=rule, rows=(~passed).arg_true())


def _structure_sentence(error: SchemaError, frame: pl.DataFrame, kind: Kind) -> str:
    from pandera.errors import SchemaErrorReason

    expected = COLUMNS[kind] | OPTIONAL.get(kind, {})
    name = str(error.failure_cases if isinstance(error.failure_cases, str) else error.column_name)
    if error.reason_code is SchemaErrorReason.COLUMN_NOT_IN_DATAFRAME:
        return f"column '{name}' ({_type(expected[name])}) is missing"
    if error.reason_code is SchemaErrorReason.COLUMN_NOT_IN_SCHEMA:
        missing = [column for column in expected if column not in frame.columns]
        return f"column '{name}' does not belong in a '{kind}' table. {did_you_mean(name, missing)}".rstrip()
    if error.reason_code is SchemaErrorReason.COLUMN_NOT_ORDERED:
        return f"column '{name}' is in the wrong place (the order is {', '.join(expected)})"
    name = str(error.column_name)
    return f"column '{name}' has the type {_type(frame.schema[name])}, not {_type(expected[name])}"


def _type(dtype: pl.DataType) -> str:
    """Return a type in readable form: `list[struct{role: str, content: str}]`."""
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.DataType):
        return f"list[{_type(dtype.inner)}]"
    if isinstance(dtype, pl.Struct):
        inner = (
            f"{field.name}: {_type(field.dtype)}" for field in dtype.fields if isinstance(field.dtype, pl.DataType)
        )
        return f"struct{{{', '.join(inner)}}}"
    return {"String": "str", "Boolean": "bool"}.get(str(dtype), str(dtype).lower())
