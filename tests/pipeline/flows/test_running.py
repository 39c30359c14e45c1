"""A killed flow is not "Running" for ever, one that is alive is left alone, and servers start one after the other."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows.running import FOLDER, _ended
from flows.server import Lock
from tests.pipeline.flows.project import FINAL, written

if TYPE_CHECKING:
    from tests.pipeline.flows.project import Project


@pytest.mark.slow
def test_a_killed_flow_is_marked_by_the_next_one(project: Project) -> None:
    project.trouble(left={"seconds": 200})
    killed = project.start("branch@left")
    assert killed.stderr is not None
    run = project.run_id(next(line for line in killed.stderr if "flow-run/" in line))
    project.wait_begun("left")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert project.left_running() == []
    project.trouble()
    assert project.run("prepare").code == 0
    (found,) = project.api("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    assert (found["state_type"], found["state"]["message"]) == (
        "CRASHED",
        f"its process {killed.pid} ended silently: it was killed",
    )

    def tasks() -> list[str]:
        return [task["state_type"] for task in project.api("task_runs/filter", flow_runs={"id": {"any_": [run]}})]

    assert "CRASHED" in written(tasks, FINAL.issuperset)
    assert not list((project.root / FOLDER).iterdir())


def test_a_flow_that_is_alive_or_on_another_host_is_left_alone(tmp_path: Path) -> None:
    def record(name: str, host: str) -> Path:
        (tmp_path / name).write_text(json.dumps({"host": host, "pid": os.getpid()}))
        return tmp_path / name

    alive, here, there = record("a", socket.gethostname()), record("b", socket.gethostname()), record("c", "elsewhere")
    (tmp_path / "d").write_text("")
    with alive.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert [_ended(file) for file in (alive, here, there, tmp_path / "d")] == [None, os.getpid(), None, None]
    assert _ended(alive) == os.getpid()


def test_the_second_server_starts_when_the_first_one_answers(tmp_path: Path) -> None:
    first, began = Lock(tmp_path / "home/starting"), list[float]()
    second = threading.Thread(target=lambda: (Lock(tmp_path / "home/starting"), began.append(time.monotonic())))
    second.start()
    time.sleep(0.3)
    assert began == []
    released = time.monotonic()
    first.release()
    first.release()
    second.join(timeout=10)
    assert began and began[0] >= released


@pytest.mark.slow
def test_two_first_flows_at_once_both_run(bare: Project) -> None:
    """Both servers would create and migrate one database; each has a log of its own."""
    both = [bare.start("branch@left"), bare.start("branch@right")]
    for process in both:
        ended = bare.finish(process)
        assert ended.code == 0, ended.err
    logs = list((bare.root / ".prefect/servers").glob("*.log"))
    assert len(logs) == 2 and not any("Traceback" in log.read_text() for log in logs)
