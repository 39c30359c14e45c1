"""Small files that would take gigabytes are refused before memory is allocated for them: 8 GB of address space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.faults.large import FILES, made, tried
from posttrain.data.parquet_pages import page_sizes
from posttrain.pipeline.tables.arrow_sizes import unpacked_sizes
from posttrain.pipeline.tables.readers import Columns, file_part
from posttrain.rewards.patterns import written_out
from tests.marks import slow_except

QUICK = (
    "Arrow, packed buffers of 8 GB",
    "parquet, a cell of 1 GB that the footer calls small",
    "regex, nested repeats",
)


@pytest.mark.parametrize("name", slow_except(QUICK, tuple(FILES)))
def test_it_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    found = tried(made(name, tmp_path))
    assert found["outcome"].startswith("refused: ") and found["mb"] < 500, found


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("file", [True, False])
def test_whole_arrow_files_are_read(tmp_path: Path, compression: str | None, *, file: bool) -> None:
    texts = [f"text {number} " * (number % 50) for number in range(3000)]
    columns = {
        "text": pa.array(texts),
        "view": pa.array(texts, pa.string_view()),
        "name": pa.array([f"n{number % 7}" for number in range(3000)]).dictionary_encode(),
        "turns": pa.array([[{"role": "user", "content": text}] for text in texts]),
    }
    table, place = pa.table(columns), tmp_path / "a.arrow"
    opened = pa.ipc.new_file if file else pa.ipc.new_stream
    with opened(place, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=1000)
    rows = [row for _, row in file_part(place).rows(Columns(frozenset(columns)), "here")]
    assert rows == table.to_pylist()
    with place.open("rb") as stream:
        sizes = list(unpacked_sizes(stream, 8 if file else 0))
    assert len(sizes) == 4 and sum(sizes) >= table.nbytes, "three batches and a dictionary"


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_are_those_that_the_writer_made(tmp_path: Path, codec: str, version: str) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, 2000))) for _ in range(2000)]
    table = pa.table({"text": texts, "number": range(2000)})
    pq.write_table(
        table, tmp_path / "a.parquet", compression=codec, data_page_version=version, use_dictionary=["number"],
        write_page_checksum=True,
    )  # fmt: skip
    with (tmp_path / "a.parquet").open("rb") as stream, pq.ParquetFile(stream) as parquet:
        for nth in range(2):
            chunk = parquet.metadata.row_group(0).column(nth)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            sizes = list(page_sizes(stream, start, chunk.total_compressed_size))
            headers = chunk.total_uncompressed_size - sum(sizes)
            assert 0 < headers < 10_000 * len(sizes), "the footer counts the headers too"


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3), ("a{3}b", 4), ("(ab){3}", 6), ("(a{2}b){3,}", 9), (r"\d{4}", 4), ("[)(]{3}", 3), (r"x\){3}", 4),
        ("[]a]{2}", 2), ("(a|b){2,5}", 4), ("a{0,1000}", 1), ("a*b+", 2), ("[[:alpha:]]{3}", 3),
    ],
)  # fmt: skip
def test_repeats_are_counted(pattern: str, size: int) -> None:
    assert written_out(pattern) == size
