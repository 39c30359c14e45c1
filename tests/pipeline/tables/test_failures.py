"""Violations of a table's schema as text."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import polars as pl
import pytest

from posttrain.pipeline.tables import failures as module
from posttrain.pipeline.tables.failures import (
    LISTED,
    Failure,
    failure_lines,
    first_line,
    rejected_rows,
    row_failures,
    structure_failures,
)
from tests.pipeline.tables.samples import table_of


def test_the_structure_of_a_table() -> None:
    table = table_of("corpus")
    assert structure_failures(table, "corpus") == [] and row_failures(table, "corpus") == []
    assert structure_failures(table.drop("text"), "corpus") == ["column 'text' (str) is missing"]
    assert structure_failures(table.with_columns(txt=pl.lit(1)), "corpus")[0].startswith(
        "column 'txt' does not belong in a 'corpus' table"
    )
    assert structure_failures(table.with_columns(text=pl.lit(1)), "corpus") == [
        "column 'text' has the type int32, not str"
    ]
    wrong = structure_failures(table.select("split", "id", "text"), "corpus")
    assert any(line.startswith("column 'split' is in the wrong place (the order is id, split, text)") for line in wrong)


def test_rows_that_violate_a_rule() -> None:
    table = table_of("corpus")
    broken = table.with_columns(text=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("text"))
    (failure,) = [one for one in row_failures(broken, "corpus") if one.column == "text"]
    assert failure.rows.to_list() == [1] and "must not be null" in failure.rule
    (row,) = rejected_rows(broken, [failure]).to_dicts()
    assert row["row"] == 1 and row["reason"] == f"text {failure.rule}"
    assert failure_lines(broken, [failure]) == [f"row 1, text = None: {failure.rule}"]
    assert failure_lines(broken, [failure], "line {}".format)[0].startswith("line 1, ")


def test_no_rule_hides_another() -> None:
    frame = pl.DataFrame({"a": range(30), "b": range(30)})
    many, few = Failure("a", "x", pl.Series(range(30))), Failure("b", "y", pl.Series([29]))
    lines = failure_lines(frame, [many, few])
    assert len(lines) == LISTED and lines[-1] == "row 29, b = 29: y"


def test_types_and_messages() -> None:
    turns = pl.List(pl.Struct({"role": pl.String(), "right": pl.Boolean()}))
    assert module._type(turns) == "list[struct{role: str, right: bool}]" and module._type(pl.Float64()) == "float64"
    assert first_line(ValueError("a\x1b\nb")) == "a\\x1b" and first_line(ValueError()) == "ValueError"


def test_a_rule_that_cannot_run_is_a_defect() -> None:
    error = SimpleNamespace(check=SimpleNamespace(error="rule"), check_output=None, column_name="a")
    with pytest.raises(RuntimeError, match="the rule 'rule' of column 'a' failed to run"):
        module._failure(error)


TABLES = """
import sys
from posttrain.late_imports import without
with without("pandas", "hypothesis"):
    import pandera.polars as pa, polars as pl
    schema = pa.DataFrameSchema({"number": pa.Column(pl.Int64, pa.Check.gt(0))})
    schema.validate(pl.DataFrame({"number": [1]}))
assert "pandas" not in sys.modules
import pandas
print(pandas.DataFrame({"number": [1]}).shape)
"""


def test_tables_are_checked_without_pandas_which_can_be_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", TABLES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1, 1)"
