"""What made a result is written down, the same in every process that runs the same code."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.files import write_json
from posttrain.measure.record import cpu_isa, note, noted, read_record, record_path, versions, write_record
from tests.workspace import ROOT, environment

RECORD = """
import sys
from posttrain.models.device import Runtime, DeviceParams
from posttrain.measure.record import note, write_record
Runtime(DeviceParams(device="cpu", precision="bf16", threads=int(sys.argv[1])))
note(seed=7)
write_record("online@grpo", {})
"""
ANOTHER_PATCH = """
import sys
from collections import namedtuple
major, minor, micro, *rest = sys.version_info
Version = namedtuple("Version", "major minor micro releaselevel serial")
sys.version = sys.version.replace(f"{major}.{minor}.{micro}", f"{major}.{minor}.{micro + 1}", 1)
sys.version_info = Version(major, minor, micro + 1, *rest)
"""
CODE = """
import json
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.measure.record import versions
print(json.dumps([Library().code("sft@main", {"sft": {"runs": {"main": {}}}}), versions()]))
"""


def recorded(folder: Path, threads: int) -> bytes:
    folder.mkdir()
    command = [sys.executable, "-c", RECORD, str(threads)]
    subprocess.run(command, cwd=folder, env=environment() | {"PYTHONPATH": str(ROOT)}, check=True)
    return (folder / "records/online/grpo.json").read_bytes()


@pytest.mark.slow
def test_a_record_holds_what_was_decided_and_nothing_of_the_moment(tmp_path: Path) -> None:
    """Two processes write the same but for the setting in which they differ."""
    found, two = (json.loads(recorded(tmp_path / f"{threads}", threads)) for threads in (1, 2))
    assert (found["stage"], found["seed"], found["device"]) == ("online@grpo", 7, "cpu")
    assert (found["precision"], found["threads"]) == ("bf16", 1)
    assert two == {**found, "threads": 2}


@pytest.mark.slow
def test_another_patch_version_of_python_makes_no_stage_run_again(tmp_path: Path) -> None:
    """A clone on Python 3.11.2 has the code/ and the records, so the dvc.lock, that 3.11.7 has made."""
    env = environment() | {"PYTHONPATH": str(ROOT)}
    ours, theirs = (
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, check=True, capture_output=True).stdout
        for text in (CODE, ANOTHER_PATCH + CODE)
    )
    assert ours == theirs
    code, versions = json.loads(ours)
    assert code["packages"]["python"] == versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_summary_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_json(tmp_path / "a.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_facts_and_files_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_CPU_ISA", "avx2")
    note(a_fact="known")
    assert noted("a_fact") == "known" and noted("another") is None
    assert record_path("online@grpo") == Path("records/online/grpo.json") and cpu_isa() == "avx2"
    write_record("online@grpo", {"inputs": ["a"]})
    found = read_record(record_path("online@grpo"))
    assert (found["stage"], found["a_fact"], found["inputs"], found["cpu_isa"]) == (
        "online@grpo",
        "known",
        ["a"],
        "avx2",
    )
    assert found["versions"] == versions() and versions()["torch"] == importlib.metadata.version("torch")
    for text in ("[1]", "{", "null"):
        Path("damaged.json").write_text(text, encoding="utf-8")
        assert read_record(Path("damaged.json")) == {}
    assert read_record(Path("none.json")) == {}
    monkeypatch.delenv("POSTTRAIN_CPU_ISA")
    assert cpu_isa() == "as found"
