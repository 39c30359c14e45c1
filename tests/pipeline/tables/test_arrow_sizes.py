"""The unpacked size of an Arrow file's batches, from its messages."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import pytest

from posttrain.pipeline.tables import arrow_sizes as module
from posttrain.pipeline.tables.arrow_sizes import AFTER_MAGIC, shared_size, unpacked_sizes

ROWS = 1000
TABLE = pa.table({"n": pa.array(range(ROWS), pa.int64()), "text": ["abcd"] * ROWS})


def written(table: pa.Table, *, stream: bool = True, packed: str | None = None) -> bytes:
    sink, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression=packed)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def sizes(data: bytes, start: int = 0) -> list[int]:
    return list(unpacked_sizes(io.BytesIO(data), start))


def test_the_size_does_not_depend_on_packing() -> None:
    buffers = ROWS * 8 + (ROWS + 1) * 4 + ROWS * 4
    (plain,) = sizes(written(TABLE))
    assert plain == 3 * 8 * ROWS + buffers, "each column and the batch have 8 bytes more for a row"
    (packed,) = sizes(written(TABLE, packed="zstd"))
    assert abs(packed - plain) < 64
    assert sizes(written(TABLE, stream=False), AFTER_MAGIC) == [plain]
    assert len(sizes(written(pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()})))) == 2


def test_damage_is_an_error() -> None:
    data = written(TABLE)
    with pytest.raises(ValueError, match="but the file ends before"):
        sizes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="a message is damaged"):
        sizes(struct.pack("<I", 4) + b"\xff\xff\xff\x7f")


def test_messages() -> None:
    data = written(TABLE)
    stream, end = io.BytesIO(data), len(data)
    metadata, body = module._message(stream, 0, end) or (b"", 0)
    assert body == 8 + struct.unpack_from("<I", data, 4)[0] and metadata == data[8:body]
    assert module._header(metadata) is None, "the schema"
    batch, _ = module._message(stream, body, end) or (b"", 0)
    table = module._header(batch)
    assert table is not None and module._number(batch, module._field(batch, table, 0)) == ROWS
    assert [tuple(pair) for pair in module._pairs(batch, module._field(batch, table, 1))] == [(ROWS, 0)] * 2
    old = struct.pack("<I", 3) + b"abc"
    assert module._message(io.BytesIO(old), 0, 7) == (b"abc", 7)
    assert module._message(io.BytesIO(bytes(8)), 0, 8) is None and module._message(io.BytesIO(b"ab"), 0, 2) is None


def test_a_dictionary_has_a_batch() -> None:
    data = written(pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()}))
    stream, end = io.BytesIO(data), len(data)
    _, body = module._message(stream, 0, end) or (b"", 0)
    metadata, _ = module._message(stream, body, end) or (b"", 0)
    table = module._header(metadata)
    assert table is not None and module._number(metadata, module._field(metadata, table, 0)) == 2


def test_numbers_in_a_flatbuffer() -> None:
    assert module._root(struct.pack("<I", 12)) == 12
    assert module._indirect(struct.pack("<II", 0, 6), 4) == 10
    assert module._number(struct.pack("<qq", 0, -5), 8) == -5 and module._number(b"", 0) == 0
    assert module._pairs(b"", 0) == []
    assert module._pairs(struct.pack("<IIIqqqq", 0, 4, 2, 1, 2, 3, 4), 4) == [(1, 2), (3, 4)]
    with pytest.raises(ValueError, match="a message is damaged"):
        module._pairs(struct.pack("<III", 0, 4, 9), 4)
    data = struct.pack("<HHHHi", 8, 8, 4, 0, 8)
    assert module._field(data, 8, 0) == 12 and module._field(data, 8, 1) == 0 and module._field(data, 8, 2) == 0


def test_shared_values_count_for_each_row() -> None:
    words = pa.array(["long word", "a", "long word", None])
    assert shared_size(words.dictionary_encode()) == 19
    assert shared_size(pa.array([], pa.string()).dictionary_encode()) == 0
    assert shared_size(words.cast(pa.string_view())) == 19 and shared_size(words) == 0
    nested = pa.StructArray.from_arrays([words.dictionary_encode(), words], ["a", "b"])
    assert shared_size(nested) == 19
    assert shared_size(pa.array([["a", "b"], ["c"]], pa.list_(pa.string_view()))) == 3
    with pytest.raises(ValueError, match="columns of the type run_end_encoded"):
        shared_size(pa.RunEndEncodedArray.from_arrays([2, 4], ["a", "b"]))


def test_lengths_of_values() -> None:
    assert module._lengths(pa.array(["ab", None, "c"])).to_pylist() == [2, None, 1]
    assert module._lengths(pa.array([b"abc"], pa.binary_view())).to_pylist() == [3]
    assert module._lengths(pa.array([1, 2], pa.int8())).to_pylist() == [8, 8]
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    assert module._lengths(lists).to_pylist() == [lists.nbytes] * 2
    assert module._is_text(pa.large_string()) is True and module._is_text(pa.int8()) is False
