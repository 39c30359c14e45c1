"""A YAML text is parsed once per workspace. Another text never gets its data, whatever the times of its file are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posttrain.pipeline.params.parsed import FOLDER, parsed_once
from posttrain.pipeline.params.yaml_files import _parsed, read_yaml


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    FOLDER.parent.mkdir(parents=True)
    return tmp_path


def read() -> dict[str, object]:
    """Read params.yaml as a new process does."""
    _parsed.cache_clear()
    return read_yaml("params.yaml")


def test_a_file_is_parsed_once_and_again_after_an_edit_that_hides_itself(workspace: Path) -> None:
    file = workspace / "params.yaml"
    file.write_text("seed: 1\n", encoding="utf-8")
    before = file.stat()
    assert read() == {"seed": 1} == read()
    file.write_text("seed: 2\n", encoding="utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size and read() == {"seed": 2}


def test_what_was_kept_is_used(workspace: Path) -> None:
    calls: list[int] = []

    def parse() -> dict[str, float]:
        calls.append(1)
        return {"lr": 1e-3, "limit": float("inf")}

    assert [parsed_once("text", "params.yaml", parse) for _ in range(2)] == [{"lr": 1e-3, "limit": float("inf")}] * 2
    assert len(calls) == 1
    parsed_once("another text", "params.yaml", parse)
    assert len(calls) == 2 and list((workspace / FOLDER).iterdir()) == [workspace / FOLDER / "params.yaml.json"]


@pytest.mark.parametrize("text", ["day: 2026-11-30\n", "runs: {1: a}\n", "loss: .nan\n"])
def test_data_that_json_cannot_hold_is_parsed_each_time(text: str, workspace: Path) -> None:
    (workspace / "params.yaml").write_text(text, encoding="utf-8")
    first, again = read(), read()
    assert str(first) == str(again) and not (workspace / FOLDER).exists()


def test_a_damaged_memory_is_ignored(workspace: Path) -> None:
    (workspace / "params.yaml").write_text("seed: 1\n", encoding="utf-8")
    read()
    for damage in ("", "[]", '{"digest": 1}', "\0"):
        (workspace / FOLDER / "params.yaml.json").write_text(damage, encoding="utf-8")
        assert read() == {"seed": 1}
