"""Small files that would take gigabytes, each read in a process with 8 GB of address space.

python -m benchmarks.faults.large    reads all of them and prints the table
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.limited import in_limited_process, measured

MEMORY: Final = 8_000_000 * 1024
"""`ulimit -v 8000000`."""


def _zeros(size: int) -> pa.Buffer:
    return pa.py_buffer(bytes(size))


def _packed_arrow(place: Path) -> None:
    """Four batches of a gigabyte of zeros each, packed by zstd."""
    offsets = pa.py_buffer(struct.pack("<qq", 0, 2**30))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, _zeros(2**30)])
    batch = pa.record_batch([text], ["text"])
    with pa.ipc.new_stream(place, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(8):
            writer.write_batch(batch)


def _arrow(place: Path, array: pa.Array, *, file: bool = False) -> bytes:
    batch = pa.record_batch([array], ["text"])
    opened = pa.ipc.new_file if file else pa.ipc.new_stream
    with opened(place, batch.schema) as writer:
        writer.write_batch(batch)
    return place.read_bytes()


def _false_body(place: Path) -> None:
    """A message that says it has 2**40 bytes."""
    data = bytearray(_arrow(place, pa.array(["a" * 999])))
    *_, message = (one for one in pa.ipc.MessageReader.open_stream(place.read_bytes()) if one.type == "record batch")
    at = data.rindex(struct.pack("<q", message.body.size))
    data[at : at + 8] = struct.pack("<q", 2**40)
    place.write_bytes(data)


def _nulls(place: Path) -> None:
    """2**31 rows of nulls, which take no byte of the file."""
    _arrow(place, pa.Array.from_buffers(pa.null(), 2**31 - 1, [None]))


def _shared_arrow(place: Path) -> None:
    """A text of a megabyte that 100,000 rows use."""
    indices = pa.array([0] * 100_000, pa.int32())
    _arrow(place, pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 2**20])))


def _views(place: Path) -> None:
    """A text of a megabyte that 100,000 views show."""
    view = struct.pack("<i4sii", 2**20, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * 100_000), pa.py_buffer(b"x" * 2**20)]
    _arrow(place, pa.Array.from_buffers(pa.string_view(), 100_000, buffers))


def _false_index(place: Path) -> None:
    """An index at the end of the file that names other batches than the file has."""
    first = _arrow(place, pa.array(["a"]), file=True)
    batch = pa.record_batch([pa.array(["a"])], ["text"])
    with pa.ipc.new_file(place, batch.schema) as writer:
        for _ in range(50):
            writer.write_batch(batch)
    many = place.read_bytes()
    footer = struct.unpack("<i", many[-10:-6])[0] + 10
    end = struct.unpack("<i", first[-10:-6])[0] + 10
    place.write_bytes(first[:-end] + many[-footer:])


def _cell(place: Path) -> None:
    """One cell of a gigabyte."""
    offsets = pa.py_buffer(struct.pack("<qq", 0, 2**30))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, _zeros(2**30)])
    pq.write_table(pa.table({"text": text}), place, compression="zstd", use_dictionary=False, write_statistics=False)


def _false_footer(place: Path) -> None:
    """The same, and the footer says that its chunk is small."""
    _cell(place)
    data = place.read_bytes()
    with pq.ParquetFile(place) as parquet:
        size = parquet.metadata.row_group(0).column(0).total_uncompressed_size
    assert data.count(_varint(size)) >= 1
    head, _, tail = data.rpartition(_varint(size))
    place.write_bytes(head + _varint(1000, len(_varint(size))) + tail)


def _varint(value: int, length: int = 0) -> bytes:
    """Return a number as Thrift's compact protocol writes it, padded to a length."""
    value, found = value * 2, bytearray()
    while value or not found or len(found) < length:
        found.append(value & 127 | 128)
        value >>= 7
    found[-1] &= 127
    return bytes(found)


def _shared_parquet(place: Path) -> None:
    """A text of a megabyte that 100,000 rows use."""
    indices = pa.array([0] * 100_000, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 2**20]))
    pq.write_table(pa.table({"text": text}), place)


def _false_header(place: Path) -> None:
    """A header of 2**60 bytes."""
    place.write_bytes(struct.pack("<Q", 2**60))


def _false_tensor(place: Path) -> None:
    """A tensor of 2**50 bytes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**48], "data_offsets": [0, 2**50]}}).encode()
    place.write_bytes(struct.pack("<Q", len(header)) + header)


FILES: Final[Mapping[str, tuple[str, Callable[[Path], object]]]] = {
    "Arrow, packed buffers of 8 GB": ("a.arrow", _packed_arrow),
    "Arrow, a message of 2**40 bytes": ("b.arrow", _false_body),
    "Arrow, 2**31 nulls": ("c.arrow", _nulls),
    "Arrow, a dictionary's text in 100,000 rows": ("d.arrow", _shared_arrow),
    "Arrow, views of one text in 100,000 rows": ("e.arrow", _views),
    "Arrow, an index of other batches": ("f.arrow", _false_index),
    "parquet, a cell of 1 GB": ("a.parquet", _cell),
    "parquet, a cell of 1 GB that the footer calls small": ("b.parquet", _false_footer),
    "parquet, a text in 100,000 rows": ("c.parquet", _shared_parquet),
    "jsonl, a line of 100 MB": ("a.jsonl", lambda place: place.write_bytes(b'{"text": "' + b"x" * 10**8 + b'"}')),
    "json, nested lists": ("a.json", lambda place: place.write_bytes(b"[" * 10**6)),
    "csv, a cell of 100 MB": ("a.csv", lambda place: place.write_bytes(b'text\n"' + b"x" * 10**8 + b'"\n')),
    "YAML, a billion laughs": ("bomb.yaml", lambda place: place.write_text(_LAUGHS)),
    "YAML, a tag of Python": ("tag.yaml", lambda place: place.write_text("a: !!python/object/apply:os.system [ls]\n")),
    "safetensors, a header of 2**60 bytes": ("a/model.safetensors", _false_header),
    "safetensors, a tensor of 2**50 bytes": ("b/model.safetensors", _false_tensor),
    "regex, nested repeats": ("a.regex", lambda place: place.write_text("((a{1000}){1000}){1000}")),
    "regex, 22 repeats of two": ("b.regex", lambda place: place.write_text("(?:" * 22 + "a" + "){2,}" * 22)),
    "regex, a million characters": ("c.regex", lambda place: place.write_text("a" * 10**6)),
}
"""What a file is -> its name, whose suffix says how it is read, and what writes it."""
_LAUGHS: Final = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{nth}: &a{nth} [{','.join([f'*a{nth - 1}'] * 10)}]\n" for nth in range(1, 12)
)


def made(name: str, folder: Path) -> Path:
    """Write one of the files."""
    file, write = FILES[name]
    (folder / file).parent.mkdir(exist_ok=True)
    write(folder / file)
    return folder / file


def tried(file: Path) -> dict[str, Any]:
    """Read a file in a process of its own; returns how that ended, its seconds and its largest memory."""
    return in_limited_process("benchmarks.faults.large", str(file), memory=MEMORY)


def _read(file: Path) -> str:
    """Read a file as posttrain does; returns how many rows it has, where it is accepted."""
    if file.suffix == ".regex":
        from posttrain.rewards.patterns import valid_pattern

        valid_pattern(file.read_text(encoding="utf-8"))
        return "accepted"
    if file.suffix == ".yaml":
        from posttrain.pipeline.params.yaml_files import read_yaml

        read_yaml(file)
        return "accepted"
    if file.suffix == ".safetensors":
        from posttrain.models.files.weights import open_weights

        with open_weights(file.parent) as weights:
            return f"{len(weights)} tensors"
    from posttrain.pipeline.tables.readers import Columns, file_part

    rows = sum(1 for _ in file_part(file).rows(Columns(frozenset({"text"})), "data.files.mine"))
    return f"{rows} rows"


def _outcome(file: Path) -> str:
    """Read a file; returns how that ended."""
    from posttrain.errors import PosttrainError

    try:
        return _read(file)
    except (PosttrainError, ValueError) as error:
        return f"refused: {error}"


def main() -> None:
    """Read one file, or all."""
    if sys.argv[1:]:
        import posttrain.pipeline.tables.readers  # noqa: F401  its import is not part of the time

        print(measured(lambda: _outcome(Path(sys.argv[1]))))
        return
    for line in table():
        print(line, flush=True)


def table() -> Iterator[str]:
    """Yield the lines of a table: each file with what came of it."""
    yield "| file | its size | outcome | seconds | MB |"
    yield "|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            file = made(name, Path(folder))
            found = tried(file)
            outcome = found["outcome"].replace(f"{folder}/", "").replace("|", "/").replace("\n", " ")[:200]
            size = file.stat().st_size
            yield f"| {name} | {size / 1000:,.1f} kB | {outcome} | {found['seconds']:.1f} | {found['mb']:.0f} |"
            file.unlink()


if __name__ == "__main__":
    main()
