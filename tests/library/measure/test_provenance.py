"""The maker of a checkpoint, and how two makers differ."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.measure.provenance import (
    Maker,
    code_differences,
    differences,
    hardware,
    is_maker,
    library_maker,
    read_maker,
)
from posttrain.measure.record import cpu_isa, versions

OLD: Maker = {"files": {"a": "1", "b": "1"}, "packages": {"torch": "2.0"}, "cpu": {"cpu_isa": "avx2", "gpu": "A"}}
NEW: Maker = {"files": {"a": "2", "c": "1"}, "packages": {"torch": "2.1", "numpy": "1"}, "cpu": {"cpu_isa": "avx512"}}


def test_the_maker_of_a_call() -> None:
    found = library_maker()
    assert is_maker(found) and found["packages"] == versions() and found["cpu"] == hardware()
    assert "posttrain/rollout.py" in found["files"]
    assert not any(name.startswith(("posttrain/pipeline/lock/", "posttrain/plugins/")) for name in found["files"])
    assert hardware()["cpu_isa"] == cpu_isa()


def test_is_maker() -> None:
    assert is_maker(OLD) and is_maker({**OLD, "settings": {}})
    assert not is_maker({"files": {}}) and not is_maker({**OLD, "cpu": {"a": 1}}) and not is_maker([])


def test_read_maker(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(OLD))
    (tmp_path / "b.json").write_text(json.dumps({"made": OLD, "other": 1}))
    assert read_maker(tmp_path / "a.json") == OLD and read_maker(tmp_path / "b.json", "made") == OLD
    assert read_maker(tmp_path / "b.json") is None and read_maker(tmp_path / "b.json", "other") is None
    assert read_maker(tmp_path / "missing.json") is None


def test_differences() -> None:
    code = ["a changed", "b is no longer used", "c is used now", "numpy not used -> 1", "torch 2.0 -> 2.1"]
    assert code_differences(OLD, NEW) == code
    assert differences(OLD, NEW) == [*code, "cpu_isa avx2 -> avx512"]
    assert differences(OLD, OLD) == []
