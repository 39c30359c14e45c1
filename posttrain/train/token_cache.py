"""Token rows in a memory-mapped Arrow file, cached by content, so that a table is tokenized only once.

The file name is a digest of the rows' ids (hashes of their content), the tokenizer and the tokenizing code. A second
file holds the digest of its bytes. A file that is damaged, or whose first row differs from the expected one, is written
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from posttrain.files import file_digest, remove_oldest, write_text
from posttrain.rollout import TokenRow
from posttrain.settings.host import HOST
from posttrain.text.chat import ChatText

Array = np.ndarray[Any, Any]
Encode = Callable[[list[dict[str, Any]]], Sequence[Sequence[TokenRow]]]
"""Rows of a table -> the token rows of each."""

CHUNK: Final = 4096
"""Table rows that are tokenized at a time. Only this many exist as lists of numbers at once."""
THREADS: Final = 2
PARALLEL: Final = "TOKENIZERS_PARALLELISM"
CACHE_BYTES: Final = 10_000_000_000
"""The size of the cache in bytes. Beyond it, the least recently used files are removed."""
_IDS: Final = pa.list_(pa.int32())
_SCHEMA: Final = pa.schema({"prompt": _IDS, "rest": _IDS, "mask": pa.list_(pa.uint8()), "first": pa.uint8()})
_LISTS: Final = ("prompt", "rest", "mask")


class Rows(Protocol):
    """Rows of tokens by index. Their lengths can be read without the tokens."""

    prompt_sizes: Array
    rest_sizes: Array
    starts: Array
    """The index of the first token row of each table row, and the end."""

    def row(self, place: int) -> TokenRow:
        """Return one row."""
        ...


class MappedRows:
    """The rows of an Arrow file, read one at a time."""

    def __init__(self, file: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._parts = [[_flat(batch.column(name)) for name in _LISTS] for batch in batches]
        first = np.concatenate([_numbers(batch.column("first")) for batch in batches] or [np.empty(0)])
        self.starts = np.append(np.flatnonzero(first), len(first))
        self._masked = [np.array(batch.column("mask").is_valid().to_pylist(), dtype=bool) for batch in batches]
        self.prompt_sizes, self.rest_sizes = (
            np.concatenate([np.diff(part[index][0]) for part in self._parts] or [np.empty(0, dtype=np.int64)])
            for index in (0, 1)
        )

    def row(self, place: int) -> TokenRow:
        """Return one row."""
        part = int(np.searchsorted(self._starts, place, side="right")) - 1
        index = place - int(self._starts[part])
        prompt, rest, mask = (values[at[index] : at[index + 1]].tolist() for at, values in self._parts[part])
        return TokenRow(prompt, rest, [bool(flag) for flag in mask] if self._masked[part][index] else None)

    def prompt_bytes(self, place: int) -> bytes:
        """Return the token ids of a prompt as a key."""
        part = int(np.searchsorted(self._starts, place, side="right")) - 1
        (at, values), index = self._parts[part][0], place - int(self._starts[part])
        key: bytes = values[at[index] : at[index + 1]].tobytes()
        return key

    def stream(self) -> Array:
        """Return the ids of all rows, without prompts, as one array."""
        return np.concatenate([values[at[0] : at[-1]] for _, (at, values), _ in self._parts])


def mapped_rows(text: ChatText, frame: pl.DataFrame, encode: Encode, how: str) -> MappedRows:
    """Return the tokenized rows of a table, from the cache if possible. `how` identifies the encoding."""
    first = encode(frame.head(1).to_dicts())
    folder = HOST.cache()
    if folder is None:  # nothing is cached, and the mapped file needs no name
        with tempfile.TemporaryDirectory() as scratch:
            return MappedRows(_write(Path(scratch, "rows.arrow"), frame, encode))
    digest = hashlib.sha256(json.dumps(["".join(frame["id"]), _text_digest(text), how]).encode()).hexdigest()
    file = folder / "tokens" / f"{digest[:32]}.arrow"
    cached = _cached(file)
    if cached is not None and [cached.row(index) for index in range(sum(map(len, first)))] == [*chain(*first)]:
        os.utime(file)
        return cached
    _write(file, frame, encode)
    write_text(file.with_suffix(".md5"), file_digest(file), shared=True)
    remove_oldest(file, CACHE_BYTES)  # processes that mapped one can still read it
    return MappedRows(file)


def _cached(file: Path) -> MappedRows | None:
    """Return the rows of a cached file if its digest is right."""
    try:
        intact = file.with_suffix(".md5").read_text(encoding="utf-8") == file_digest(file)
        return MappedRows(file) if intact else None
    except OSError:
        return None


def _write(file: Path, frame: pl.DataFrame, encode: Encode) -> Path:
    """Tokenize chunk by chunk into a file that is written atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream, pa.ipc.new_file(stream, _SCHEMA) as writer, _several_cores():
            for rows in _encoded(frame, encode):
                writer.write_batch(_batch(rows))
        os.replace(partial, file)
    finally:
        Path(partial).unlink(missing_ok=True)
    return file


def _encoded(frame: pl.DataFrame, encode: Encode) -> Iterator[Sequence[Sequence[TokenRow]]]:
    """Yield the rows of each chunk in order. While one thread waits for the chat template, another tokenizes."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[Sequence[Sequence[TokenRow]]]] = deque()
        for part in frame.iter_slices(CHUNK):
            waiting.append(pool.submit(lambda chunk: encode(chunk.to_dicts()), part))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def _several_cores() -> Iterator[None]:
    """Let tokenizers use all cores, which does not change ids. Outside this context they would warn after a fork."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "true"
    try:
        yield
    finally:
        del os.environ[PARALLEL]
        if before is not None:
            os.environ[PARALLEL] = before


def _batch(items: Sequence[Sequence[TokenRow]]) -> pa.RecordBatch:
    rows = [*chain(*items)]
    first = np.fromiter((index == 0 for item in items for index in range(len(item))), dtype=np.uint8)
    masks = [row.mask for row in rows]
    columns = [list_array([row.prompt for row in rows], np.int32), list_array([row.rest for row in rows], np.int32)]
    unmasked = np.packbits([mask is None for mask in masks], bitorder="little")
    flags = list_array([mask or () for mask in masks], np.uint8)
    missing = pa.Array.from_buffers(pa.bool_(), len(masks), [None, pa.py_buffer(unmasked)])
    values = pa.ListArray.from_arrays(flags.offsets, flags.values, mask=missing)
    return pa.RecordBatch.from_arrays([*columns, values, _array(first)], schema=_SCHEMA)


def list_array(values: Sequence[Iterable[float]], dtype: Any) -> pa.ListArray:
    """Return lists of numbers as an Arrow array, five times as fast as polars."""
    sized = [list(value) for value in values]
    flat = np.fromiter(chain.from_iterable(sized), dtype=dtype)
    offsets = np.cumsum([0, *map(len, sized)], dtype=np.int32)
    return pa.ListArray.from_arrays(_array(offsets), _array(flat))


def _array(values: Array) -> pa.Array:
    """Return a numpy array for Arrow. `pa.array` would import pandas, which takes 0.3 s."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _flat(column: pa.ListArray) -> tuple[Array, Array]:
    return _numbers(column.offsets), _numbers(column.values)


def _numbers(values: pa.Array) -> Array:
    """Return an array without nulls as numpy without a copy. `to_numpy` would import pandas."""
    size = values.type.bit_width // 8
    kind = np.dtype(f"{'u' if values.type == pa.uint8() else 'i'}{size}")
    buffer = values.buffers()[1]
    return np.frombuffer(buffer or b"", kind, len(values), size * values.offset)


def _text_digest(text: ChatText) -> str:
    """Return a digest of the tokenizer, the chat template and the code that makes rows."""
    folder = tempfile.mkdtemp()
    try:
        text.tokenizer.save_pretrained(folder)
        saved = {file.relative_to(folder).as_posix(): file_digest(file) for file in _files(Path(folder))}
    finally:
        shutil.rmtree(folder)
    parts = [sorted(saved.items()), text.stop, text.stops.tokens, text.today, text.variables, _code_digest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _code_digest() -> list[str]:
    here = Path(__file__)
    files = [here, here.with_name("tokenize_tables.py"), *sorted(_files(here.parents[1] / "text"))]
    packages: Mapping[str, str] = {name: version(name) for name in ("tokenizers", "transformers", "jinja2")}
    return [*(file_digest(file) for file in files if file.suffix != ".pyc"), *map(str, packages.items())]


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())
