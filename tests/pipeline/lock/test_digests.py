"""Digests as DVC names them, remembered until a file changes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from posttrain.pipeline.lock.digests import (
    DIGESTS_FILE,
    Digests,
    boot,
    folder_bytes,
    listed,
    mark,
    read_lock,
    read_settled,
    recorded,
)


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def folder(root: Path) -> None:
    (root / "data/sub").mkdir(parents=True)
    (root / "data/b.txt").write_text("b")
    (root / "data/sub/a.txt").write_text("a")


def test_digests_of_files_and_folders(tmp_path: Path) -> None:
    folder(tmp_path)
    digests = Digests(tmp_path)
    entries = [{"md5": md5("b"), "relpath": "b.txt"}, {"md5": md5("a"), "relpath": "sub/a.txt"}]
    assert digests.of("data/b.txt") == md5("b") and digests.of("missing") is None
    assert digests.listed("data") == entries
    assert folder_bytes(entries) == json.dumps(entries).encode()
    assert digests.of("data") == md5(json.dumps(entries)) + ".dir"
    assert set(digests.marks("data")) == {"b.txt", "sub/a.txt"} and digests.marks("missing") == {}
    assert digests.marks("data/b.txt") == {"": mark(tmp_path / "data/b.txt")}


def test_a_file_that_dvcignore_names_does_not_count(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / ".dvcignore").write_text("*.txt\n!b.txt\n")
    assert [entry["relpath"] for entry in Digests(tmp_path).listed("data")] == ["b.txt"]


def test_digests_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    (tmp_path / DIGESTS_FILE).parent.mkdir(parents=True)
    file = tmp_path / "a.txt"
    file.write_text("a")
    os.utime(file, ns=(1, 1))
    first = Digests(tmp_path)
    first.adopt("a.txt", "known", tmp_path / "none", until=2**62)
    assert first.of("a.txt") == "known"
    late = Digests(tmp_path)
    late.adopt("a.txt", "known", tmp_path / "none", until=0)
    assert late.of("a.txt") == md5("a")
    file.write_text("ab")
    assert first.of("a.txt") == md5("ab")


def test_listed(tmp_path: Path) -> None:
    entries = [{"md5": "1", "relpath": "a"}]
    (tmp_path / "a.dir").write_bytes(folder_bytes(entries))
    (tmp_path / "bad").write_text("{")
    assert listed(tmp_path / "a.dir") == entries and listed(tmp_path / "bad") == listed(tmp_path / "none") == []


def test_the_lock_file(tmp_path: Path) -> None:
    assert recorded(tmp_path) == {} and read_lock(tmp_path) == {}
    stages = {"code": {"cmd": "a", "outs": [{"path": "code", "md5": "1"}]}}
    (tmp_path / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    assert read_lock(tmp_path) == stages and recorded(tmp_path) == stages and read_settled(tmp_path) == stages


def test_boot_and_mark(tmp_path: Path) -> None:
    assert boot() == boot() != ""
    file = tmp_path / "a"
    file.write_text("abc")
    inode, size, written, _ = mark(file)
    assert (inode, size, written) == (file.stat().st_ino, 3, file.stat().st_mtime_ns)
