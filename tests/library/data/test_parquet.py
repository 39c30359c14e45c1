"""Parquet files: written, read, noted and refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from posttrain.data.parquet import (
    check_decoded_size,
    check_size,
    decode,
    ran_out_of_memory,
    table_format,
    write_parquet,
)
from posttrain.settings.plain import TABLES

FRAME = pl.DataFrame({"text": ["a" * 100] * 500, "n": range(500)})


def test_a_table_comes_back_with_its_format(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    write_parquet(FRAME, file)
    assert decode(file).equals(FRAME) and table_format(file) == TABLES
    first = file.read_bytes()
    write_parquet(FRAME, file)
    assert file.read_bytes() == first
    FRAME.write_parquet(file)
    assert table_format(file) == 1


def test_sizes_are_limited(tmp_path: Path) -> None:
    check_size(10, 10)
    with pytest.raises(ValueError, match="it decodes to"):
        check_size(11, 10)
    write_parquet(FRAME, tmp_path / "t")
    with (tmp_path / "t").open("rb") as stream:
        check_decoded_size(stream, ["text", "n"], 200_000)
        check_decoded_size(stream, ["n"], 20_000)
        with pytest.raises(ValueError, match=r"it decodes to|has a page of"):
            check_decoded_size(stream, ["text", "n"], 40_000)


def test_a_damaged_file_asks_for_more_than_there_is() -> None:
    assert ran_out_of_memory(pa.ArrowMemoryError("alloc of size 100 failed"))
    assert not ran_out_of_memory(pa.ArrowMemoryError(f"alloc of size {2**60} failed"))
    assert not ran_out_of_memory(ValueError("alloc of size 100 failed"))
