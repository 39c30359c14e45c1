"""What made a result is written down, the same in every process that runs the same code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.workspace import write_json
from tests.workspace import ROOT, environment

RECORD = """
import sys
from posttrain.models.device import Runtime, DeviceParams
from posttrain.measure.record import note, write_record
Runtime(DeviceParams(device="cpu", precision="bf16", threads=int(sys.argv[1])))
note(seed=7)
write_record("online@grpo", {})
"""


def recorded(folder: Path, threads: int) -> bytes:
    folder.mkdir()
    command = [sys.executable, "-c", RECORD, str(threads)]
    subprocess.run(command, cwd=folder, env=environment() | {"PYTHONPATH": str(ROOT)}, check=True)
    return (folder / "records/online/grpo.json").read_bytes()


def test_a_record_holds_what_was_decided_and_nothing_of_the_moment(tmp_path: Path) -> None:
    one, again, two = (recorded(tmp_path / f"{n}", threads) for n, threads in enumerate((1, 1, 2)))
    assert one == again
    found = json.loads(one)
    assert (found["stage"], found["seed"], found["device"]) == ("online@grpo", 7, "cpu")
    assert (found["precision"], found["threads"]) == ("bf16", 1)
    assert json.loads(two) == {**found, "threads": 2}


def test_a_summary_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_json(tmp_path / "a.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
