"""Reading and writing: atomic, byte-stable, and one clear error for every kind of damage."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posttrain
from posttrain.data.columns import Kind, with_ids
from posttrain.data.parquet import write_parquet
from posttrain.errors import TableError
from posttrain.pipeline.tables.store import read_table, rejected_path, write_table
from tests.pipeline.tables.samples import table_of

ROOT = Path(posttrain.__file__).parents[1]


def test_round_trip(kind: Kind, tmp_path: Path) -> None:
    frame = table_of(kind)
    write_table(frame, tmp_path / "a" / "b" / "t.parquet", kind)
    back = read_table(tmp_path / "a" / "b" / "t.parquet", kind)
    assert back.equals(frame)
    assert back.schema == frame.schema


def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"sp\xe2ces: a")
    write_table(table_of("corpus"), folder / "t.parquet", "corpus")
    assert read_table(folder / "t.parquet", "corpus").equals(table_of("corpus"))


def test_bytes_are_stable(kind: Kind, tmp_path: Path) -> None:
    frame = table_of(kind, rows=40)
    write_table(frame, tmp_path / "a.parquet", kind)
    time.sleep(0.01)
    chunked = pl.concat([frame[:7], frame[7:]], rechunk=False)
    assert chunked.n_chunks() == 2
    write_table(chunked, tmp_path / "b.parquet", kind)
    write_table(read_table(tmp_path / "a.parquet", kind), tmp_path / "c.parquet", kind)
    first = (tmp_path / "a.parquet").read_bytes()
    assert first == (tmp_path / "b.parquet").read_bytes() == (tmp_path / "c.parquet").read_bytes()


def test_rejected_table_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "corpus.parquet"
    write_table(table_of("corpus"), target, "corpus")
    before = target.read_bytes()
    with pytest.raises(TableError):
        write_table(table_of("corpus", {0: {"text": " "}}), target, "corpus")
    assert target.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [target, rejected_path(target)]


def test_reading_bad_rows_names_them(tmp_path: Path) -> None:
    target = tmp_path / "corpus.parquet"
    write_parquet(table_of("corpus", {1: {"text": " "}}), target)
    with pytest.raises(TableError, match=r"row 1, text = ' ': must not be blank") as caught:
        read_table(target, "corpus")
    assert str(rejected_path(target)) in str(caught.value)
    assert pl.read_parquet(rejected_path(target))["row"].to_list() == [1]


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the write itself fails, half way."""
    target = tmp_path / "corpus.parquet"
    write_table(table_of("corpus"), target, "corpus")
    before, old = target.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
        with pytest.raises(TableError, match="the table cannot be written"):
            write_table(table_of("corpus", rows=5000), target, "corpus")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_killed_writer_leaves_the_old_table(tmp_path: Path) -> None:
    """Whenever the writer is killed, the table is the old one or the new one, whole."""
    target = tmp_path / "corpus.parquet"
    code = (
        "import sys\n"
        "from tests.pipeline.tables.samples import table_of\n"
        "from posttrain.pipeline.tables.store import write_parquet\n"
        "frames = [table_of('corpus', rows=n) for n in (3000, 4000)]\n"
        "write_parquet(frames[0], sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for frame in frames: write_parquet(frame, sys.argv[1])\n"
    )
    rng, sizes = random.Random(0), set()
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(target)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.1 + rng.random() * 0.1)
            writer.kill()
        sizes.add(read_table(target, "corpus").height)
    assert sizes <= {3000, 4000}
    write_table(table_of("corpus"), target, "corpus")
    assert list(tmp_path.iterdir()) == [target], "what the killed writer left is taken over by the next"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a parquet file"),
        (b"PAR1", "the file is cut off"),
        (b"PAR1PAR1", "the file is cut off"),
        (b"id,split,text\n1,train,a\n", "not a parquet file (it begins with b'id,s', not with b'PAR1')"),
        (b"PAR1" + b"\xff" * 40 + b"PAR1", "parquet cannot be decoded"),
        (b"PAR1" + b"\x00" * 40 + b"\xff\xff\xff\x7fPAR1", "parquet cannot be decoded"),
    ],
)
def test_a_file_that_is_not_parquet_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    target = tmp_path / "corpus.parquet"
    target.write_bytes(content)
    with pytest.raises(TableError) as caught:
        read_table(target, "corpus")
    assert expected in str(caught.value)
    assert str(caught.value).endswith("which removes damaged files, then `dvc repro`")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"nothing.parquet: table not found. Run the stage that makes it"):
        read_table(tmp_path / "nothing.parquet", "corpus")
    with pytest.raises(TableError, match="it is a folder, not a table"):
        read_table(tmp_path, "corpus")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    frame = table_of("corpus")
    bad = pa.array([b"\xff\xfe", b"a", b"b", b"c"], type=pa.binary()).view(pa.string())
    strings = {name: pa.array(frame[name].to_list(), type=pa.string()) for name in ("id", "split")}
    pq.write_table(pa.table({**strings, "text": bad}), tmp_path / "corpus.parquet")
    with pytest.raises(TableError, match=r"parquet cannot be decoded .*UTF8"):
        read_table(tmp_path / "corpus.parquet", "corpus")


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_is_an_error_or_changes_nothing(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flipped, cut, zeroed or inserted bytes: a TableError, or (in unused parts of the footer) the same table."""
    frame, target, rng = table_of("chat", rows=200), tmp_path / "chat.parquet", random.Random(seed)
    write_table(frame, target, "chat")
    whole, refused = target.read_bytes(), 0
    for _ in range(60):
        target.write_bytes(_damaged(rng, whole))
        try:
            assert read_table(target, "chat").equals(frame)
        except TableError:
            refused += 1
    assert refused >= 50
    assert capfd.readouterr().err == "", "no panic of a library below is printed"


def _damaged(rng: random.Random, whole: bytes) -> bytes:
    data, at = bytearray(whole), rng.randrange(len(whole))
    size = rng.randrange(1, 200)
    match rng.randrange(5):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at : at + size]
        case 2:
            data[at : at + size] = bytes(len(data[at : at + size]))
        case 3:
            data[at:at] = rng.randbytes(size)
        case _:
            data[-rng.randrange(1, 800)] = rng.randrange(256)
    return bytes(data) if bytes(data) != whole else whole[:-1]


@pytest.mark.slow
def test_validation_is_fast(tmp_path: Path) -> None:
    """A fifth of a million prompts in the time that a million may take: the machine may be noisy."""
    text = pl.int_range(200_000, eager=True).cast(pl.String())
    turn = pl.struct(role=pl.lit("user"), content=pl.format("What is {} and one more?", pl.col("n")))
    frame = pl.DataFrame({"n": text}).select(
        split=pl.lit("train"),
        problem="n",
        prompt=pl.concat_list(turn),
        answer=pl.col("n"),
        info=pl.lit("{}"),
        task=pl.lit(""),
    )
    table = with_ids(frame, "prompts")
    began = time.process_time()
    write_table(table, tmp_path / "prompts.parquet", "prompts")
    assert time.process_time() - began < 5
