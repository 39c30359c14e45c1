"""Compute the unpacked size of an Arrow file's buffers from its messages, without unpacking them.

The format: https://arrow.apache.org/docs/format/Columnar.html. A message is a flatbuffer, followed by a body of
buffers; a packed buffer begins with its unpacked size.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAGIC: Final = b"ARROW1"
AFTER_MAGIC: Final = 8
"""The offset of the first message in a file that starts with MAGIC, when read as a stream."""
_CONTINUES: Final = 0xFFFFFFFF
_WIDTH: Final = 8
"""Bytes of memory per value, for any type."""


def unpacked_sizes(stream: BinaryIO, start: int) -> Iterator[int]:
    """Yield the unpacked bytes of each batch. Raise ValueError if a message is damaged or longer than the file."""
    end = stream.seek(0, os.SEEK_END)
    place = start
    while (message := _message(stream, place, end)) is not None:
        metadata, body = message
        try:
            table, size = _header(metadata), _number(metadata, _field(metadata, _root(metadata), 3))
        except (struct.error, IndexError) as error:
            raise ValueError("a message is damaged") from error
        if not 0 <= size <= end - body:
            raise ValueError(f"a message has {size:,} bytes, but the file ends before that")
        if table is not None:
            yield _unpacked(stream, metadata, table, body, size)
        place = body + size


def shared_size(array: pa.Array) -> int:
    """Return the bytes of an array's values. Values shared by rows are counted once per row."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = _lengths(array.dictionary)
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)  # each begins with its length
        return int(views[array.offset : array.offset + len(array), 0].astype(np.int64).sum())
    if pa.types.is_run_end_encoded(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise ValueError(f"columns of the type {kind} are not supported. Write it as a plain list or text")
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return sum(map(shared_size, array.flatten() if pa.types.is_struct(kind) else [array.flatten()]))
    return 0


def _lengths(values: pa.Array) -> pa.Array:
    """Return the approximate bytes of each value of a dictionary."""
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    if pa.types.is_large_binary(values.type) or pa.types.is_binary(values.type) or _is_text(values.type):
        return pc.binary_length(values)
    each = (values.nbytes + shared_size(values)) if values.type.num_fields else _WIDTH
    return pa.array([each] * len(values), pa.int64())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _message(stream: BinaryIO, place: int, end: int) -> tuple[bytes, int] | None:
    """Return the flatbuffer of the message at a place, and where its body begins; None at the end of the stream."""
    stream.seek(place)
    head = stream.read(8)
    if len(head) < 4:
        return None
    (length,), at = struct.unpack_from("<I", head), place + 4
    if length == _CONTINUES and len(head) == 8:
        (length,), at = struct.unpack_from("<I", head, 4), place + 8
    if length == 0:
        return None
    if length > end - at:
        raise ValueError(f"a message has {length:,} bytes, but the file ends before that")
    stream.seek(at)
    return stream.read(length), at + length


def _header(data: bytes) -> int | None:
    """Return the offset of a message's RecordBatch, including one of a dictionary; None for another message."""
    root = _root(data)
    kind = _field(data, root, 1)
    header = _indirect(data, _field(data, root, 2))
    match data[kind] if kind else 0:
        case 3:  # a batch of rows
            return header
        case 2:  # a dictionary
            return _indirect(data, _field(data, header, 1))
    return None


def _unpacked(stream: BinaryIO, data: bytes, table: int, body: int, size: int) -> int:
    """Return the bytes of a batch after its buffers are unpacked."""
    try:
        rows = _number(data, _field(data, table, 0))
        nodes, buffers, packed = (_field(data, table, index) for index in (1, 2, 3))
        values = max([rows, *(pair[0] for pair in _pairs(data, nodes))])
        unpacked_size = _WIDTH * (int(max(values, 0)) + sum(max(int(pair[0]), 0) for pair in _pairs(data, nodes)))
        for offset, length in _pairs(data, buffers):
            if not 0 <= offset <= offset + length <= size:
                raise ValueError("a buffer ends outside its message")
            stream.seek(body + offset)
            unpacked = struct.unpack("<q", stream.read(8))[0] if packed and length >= 8 else -1
            unpacked_size += max(int(length), int(unpacked))
    except (struct.error, IndexError) as error:
        raise ValueError("a message is damaged") from error
    return unpacked_size


def _root(data: bytes) -> int:
    return int(struct.unpack_from("<I", data)[0])


def _field(data: bytes, table: int, index: int) -> int:
    """Return the offset of the n-th field of a flatbuffer table; 0 if it is missing."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * index + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * index)
    return table + offset if offset else 0


def _indirect(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _number(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<q", data, place)[0]) if place else 0


def _pairs(data: bytes, place: int) -> list[Any]:
    """Return a vector of pairs of 64-bit numbers."""
    if not place:
        return []
    vector = _indirect(data, place)
    (count,) = struct.unpack_from("<I", data, vector)
    if count * 16 > len(data):
        raise ValueError("a message is damaged")
    return [struct.unpack_from("<qq", data, vector + 4 + 16 * index) for index in range(count)]
