"""Timings of stages: paths, files and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.measure.counts import counts
from posttrain.measure.phases import CLOCK, NAMES, OTHER
from posttrain.measure.timings import (
    device_peak_mb,
    of_this_run,
    peak_mb,
    read_timings,
    report_timings,
    timings_path,
    timings_state,
    timings_table,
)


def written(folder: Path, stage: str, total: float) -> None:
    seconds = {**dict.fromkeys((*NAMES, OTHER), 0.0), OTHER: total}
    timing = {"stage": stage, "seconds": seconds, "total": total, "peak_mb": 10.0, "starts": 2, "device_peak_mb": 7.0}
    (folder / f"{stage}.json").write_text(json.dumps(timing))


def test_paths() -> None:
    assert timings_path("online@grpo") == Path("timings/online/grpo.json")


def test_the_table_has_the_longest_stage_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    written(tmp_path, "short", 1.0)
    written(tmp_path, "long", 9.0)
    lines = timings_table(tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "long", "short", "all"]
    assert lines[1].split()[1] == "9.0" and "100%" in lines[1] and lines[3].split()[1] == "10.0"
    assert lines[1].endswith("7 MB on the GPU  in 2 starts")
    assert "long" not in timings_table(tmp_path, ["short"])
    with pytest.raises(PipelineError, match="no timings found"):
        timings_table(tmp_path, ["none"])


def test_read_timings(tmp_path: Path) -> None:
    written(tmp_path, "a", 1.0)
    assert read_timings(tmp_path / "a.json")["stage"] == "a"
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(PipelineError, match="cannot be read"):
        read_timings(tmp_path / "b.json")


def test_the_timings_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report_timings("a")
    assert read_timings(timings_path("a"))["record"] == "" and of_this_run("a") == {}
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.json").write_text("{}")
    report_timings("a")
    assert of_this_run("a")["stage"] == "a"
    (tmp_path / "records" / "a.json").write_text('{"b": 1}')
    assert of_this_run("a") == {}


def test_memory_and_state() -> None:
    assert 10 < peak_mb() < 1e6 and device_peak_mb() >= 0
    state = timings_state()
    assert (set(state["seconds"]), state["starts"], state["counts"]) == ({*NAMES, OTHER}, CLOCK.starts, counts())
