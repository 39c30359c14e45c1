"""A run of the pipeline that is tracked while it trains, by a tracker that is killed: nothing of the run changes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.files import file_digest
from tests.plugins.trackers.test_track import PYTHON, curves, read_back, started, steps, wait_for, written
from tests.workspace import ROOT, dvc, environment, make_workspace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="the trackers are not there: make test-track"),
]
STAGE, RUN = "base_scratch@tiny", "base/tiny"


def digests(workspace: Path) -> dict[str, str]:
    outputs = [workspace / "dvc.lock", *(workspace / "models/base/tiny").rglob("*"), workspace / "plots/base/tiny.csv"]
    outputs += [workspace / "records/base_scratch/tiny.json", workspace / "metrics/base/tiny.json"]
    return {str(file.relative_to(workspace)): file_digest(file) for file in outputs if file.is_file()}


def test_a_tracker_that_is_killed_while_a_run_trains_changes_nothing(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "tracked", ROOT / "recipes/smoke.yaml")
    done = dvc(workspace, "repro", STAGE)
    assert done.returncode == 0, done.stdout
    before = digests(workspace)
    assert len(before) > 4
    command = [sys.executable, "-m", "dvc", "repro", "-s", "-f", STAGE]
    (workspace / "plots/base/tiny.csv").unlink()
    tracker = started(workspace, "--to", "tensorboard", "--follow", "--every", "0.1")
    training = subprocess.Popen(command, cwd=workspace, env=environment())
    wait_for(lambda: steps(workspace, "tensorboard") > 20, tracker, most=120)
    tracker.send_signal(signal.SIGKILL)
    tracker.communicate()
    assert training.poll() is None, "the tracker was killed too late to show anything"
    follower = started(workspace, "--to", "tensorboard,mlflow", "--follow", RUN)
    assert training.wait(300) == 0
    out, err = follower.communicate(timeout=120)
    assert follower.returncode == 0, f"{out}\n{err}"
    assert digests(workspace) == before
    for name in ("tensorboard", "mlflow"):
        (found,) = read_back(workspace, name).values()
        assert curves(found) == written(workspace / "plots/base/tiny.csv"), name
