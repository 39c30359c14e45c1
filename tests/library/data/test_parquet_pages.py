"""The unpacked sizes of a column's pages."""

from __future__ import annotations

import io

import polars as pl
import pyarrow.parquet as pq
import pytest

from posttrain.data.parquet_pages import page_sizes


def test_the_pages_of_a_plain_column() -> None:
    stream = io.BytesIO()
    table = pl.DataFrame({"n": range(3000)}).to_arrow()
    pq.write_table(table, stream, use_dictionary=False, compression="none", data_page_size=8000, write_batch_size=1000)
    chunk = pq.read_metadata(stream).row_group(0).column(0)
    sizes = list(page_sizes(stream, chunk.data_page_offset, chunk.total_compressed_size))
    assert len(sizes) == 3 and all(8000 <= size <= 8100 for size in sizes)  # 1000 numbers of 8 bytes, and their levels


@pytest.mark.parametrize("data", [b"", b"\xff" * 50, b"\x15", b"\x15\x00\x15\x02\x15\xff\x7f\x00" + b"x" * 50])
def test_damaged_headers(data: bytes) -> None:
    with pytest.raises(ValueError, match="the header of a page is"):
        list(page_sizes(io.BytesIO(data), 0, max(len(data), 1)))
