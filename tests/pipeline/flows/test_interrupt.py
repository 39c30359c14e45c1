"""However a flow is ended, no process stays behind and the next run goes on."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.flows.project import Project

# One branch does not listen to SIGINT, the other has a child of its own.
BUSY = {"left": {"seconds": 300, "deaf": 1}, "right": {"seconds": 300, "child": 1}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_signals_end_everything(project: Project, number: signal.Signals) -> None:
    project.trouble(**BUSY)
    process = project.start()
    project.wait_begun("left", "right")
    process.send_signal(number)
    ended = project.finish(process)
    assert ended.seconds < 20
    assert ended.code == 128 + number
    assert project.left_running() == []
    assert ended.states["prepare"] == "Completed"
    assert ended.states["branch@left"] == "Cancelled"
    assert ended.states["join"] == "NotRun"
    project.trouble()
    after = project.run("branch")
    assert after.code == 0, after.err
    assert after.states == {"prepare": "Cached", "branch@left": "Completed", "branch@right": "Completed"}


@pytest.mark.slow
def test_cancelled_in_the_pages(project: Project) -> None:
    project.trouble(**BUSY)
    process = project.start()
    assert process.stderr is not None
    said = next(line for line in process.stderr if "flow-run/" in line)
    project.wait_begun("left", "right")
    run_id = project.run_id(said)
    project.api(f"flow_runs/{run_id}/set_state", state={"type": "CANCELLING"})
    ended = project.finish(process)
    assert ended.seconds < 20
    assert ended.code != 0
    assert project.left_running() == []
    runs = project.api("flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})
    assert runs[0]["state_type"] == "CANCELLED"


@pytest.mark.slow
def test_a_killed_flow_leaves_no_orphan(project: Project) -> None:
    project.trouble(**BUSY)
    process = project.start()
    project.wait_begun("left", "right")
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while project.processes():
        assert time.monotonic() < end, project.processes()
        time.sleep(0.2)
