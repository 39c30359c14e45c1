"""What `posttrain status` says of a stage that runs, and of the time that is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.files import write_json
from posttrain.measure.progress import Progress, keep_progress, progress_path
from posttrain.measure.stage_log import log_path
from posttrain.measure.timings import NAMES, OTHER, timings_path
from posttrain.pipeline.lock.code_manifest import CODE
from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.lock.status import _left, _progress
from tests.workspace import ROOT, dvc, stage


def test_a_running_stage_has_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Progress, "file", None)
    assert _progress("online@grpo", os.getpid()) == "", "no file yet"
    Path("logs").mkdir()
    keep_progress("online@grpo")
    progress = Progress("online@grpo", 1800)
    for done in (3, 528):
        progress.advance(done)
    progress.close({"reward": 1.08})
    found = _progress("online@grpo", os.getpid())
    assert found.startswith(", 531/1800 steps  ") and found.endswith("  reward 1.08")
    assert _progress("online@grp", os.getpid()) == ""
    earlier = {**json.loads(progress_path("online@grpo").read_bytes()), "time": 0.0}
    progress_path("online@grpo").write_text(json.dumps(earlier))
    assert _progress("online@grpo", os.getpid()) == "", "of an earlier run"
    progress_path("online@grpo").write_text("{")
    assert _progress("online@grpo", os.getpid()) == ""
    keep_progress("online@grpo")
    assert not progress_path("online@grpo").exists(), "a new run begins without one"


def test_the_time_left_is_that_of_the_last_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _left(14, ["sft@main", "report"]) == "12 of 14 stages are done"
    seconds = {**dict.fromkeys(NAMES, 0.0), OTHER: 318.0}
    write_json(timings_path("sft@main"), {"stage": "sft@main", "seconds": seconds, "total": 318.0, "peak_mb": 1.0})
    took = "12 of 14 stages are done; the others took 5:18 when they last ran"
    assert _left(14, ["sft@main", "report"]) == f"{took} (1 of them never ran here)"
    assert _left(13, ["sft@main"]) == took.replace("14", "13")


@pytest.mark.slow
def test_a_stage_says_where_it_is_and_what_is_left(own_workspace: Path) -> None:
    names = {*Pipeline(own_workspace).stages}
    count = len(names)
    logs = {name: log.read_text() for name in names - {CODE} if (log := own_workspace / log_path(name)).is_file()}
    numbers = {int(found[1]) for text in logs.values() if (found := re.search(rf" \[(\d+)/{count}\] ", text))}
    assert numbers == {*range(2, count + 1)}, "every stage in its turn, after the stage `code`"
    assert f" 0 of {count} stages are left" in logs["report"]
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("loss: {beta: 0.1}", "loss: {beta: 0.4}"))
    assert dvc(own_workspace, "repro").returncode == 0
    text = (own_workspace / log_path("preference@dpo")).read_text()
    assert f" [{count - 3}/{count}] preference@dpo\n" in text, "what is up to date counts as done"
    assert re.search(rf" 3 of {count} stages are left, about \d+:\d\d\n", text)
    alone = stage(own_workspace, "report")
    assert alone.returncode == 0 and "stages are left" not in alone.stdout, "without DVC nothing is left"


def test_what_status_imports_is_quick_to_import() -> None:
    """`posttrain status` is asked often: pydantic alone would take as long as all else."""
    code = "import sys, posttrain.pipeline.lock.status; raise SystemExit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
