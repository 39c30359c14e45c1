"""Files that are written completely or not at all, and sizes as text."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import psutil
import pytest

from posttrain import files
from posttrain.files import (
    _address_space,
    _available,
    _finite,
    atomic_path,
    file_digest,
    format_age,
    format_size,
    free_memory,
    is_outside,
    read_finite_json,
    remove_oldest,
    rounded,
    sync,
    user_cache,
    write_json,
)


def test_what_lies_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("/")
    assert [is_outside(path) for path in ("a", "a/../b", "../a", "link/x", "/etc")] == [False, False, True, True, True]
    assert is_outside("custom/../a", "custom") and not is_outside("custom/a", "custom")


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    file = tmp_path / "deep/a.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError), atomic_path(file) as temporary:
        temporary.write_text(3)  # type: ignore[arg-type]
    assert file.read_text() == '{\n  "a": 1\n}\n' and [*file.parent.iterdir()] == [file]
    sync(tmp_path)


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == hashlib.md5(b"abc").hexdigest()


def test_json_has_finite_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": [1, 2.5, "x"]}')
    assert read_finite_json(file) == {"a": [1, 2.5, "x"]} and _finite("2.5") == 2.5
    for text in ("[NaN]", "[1e999]"):
        file.write_text(text)
        with pytest.raises(ValueError, match="is not finite"):
            read_finite_json(file)


def test_numbers_are_rounded_to_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert rounded({"a": 1.23456789, "b": 123456789.0}) == {"a": 1.23457, "b": 123457000.0}
    assert rounded({"a": 1.26, "b": float("nan")}, 2) == {"a": 1.3}
    assert capsys.readouterr().err == "not finite, so omitted: b\n"


def test_free_memory_is_within_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory()
    assert 0.5 * free.available < _available() < free.total
    assert 0 <= free_memory() <= free.total
    used = psutil.Process().memory_info().vms
    assert 0.8 * used < _address_space() < 1.2 * used
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 2**20, used + 2**20))
    monkeypatch.setattr(files, "_address_space", lambda: used)
    assert free_memory() == 2**20


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    page = os.sysconf("SC_PAGE_SIZE")

    def unreadable(self: Path, **_: object) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert _available() == float(os.sysconf("SC_PHYS_PAGES") * page) and _address_space() == 0


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 bytes"), (1500, "1.5 kB"), (2e6, "2 MB"), (3.456e9, "3.46 GB"), (5e12, "5 TB")]
)
def test_sizes(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(119, "119 seconds"), (120, "2 minutes"), (7200, "2 hours"), (259_200, "3 days")]
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert user_cache() == Path("/c/posttrain")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache/posttrain"


def test_the_oldest_files_of_a_cache_are_removed(tmp_path: Path) -> None:
    for age, name in enumerate(("new.bin", "middle.bin", "old.bin")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    remove_oldest(tmp_path / "new.bin", 25)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["middle.bin", "new.bin"]
