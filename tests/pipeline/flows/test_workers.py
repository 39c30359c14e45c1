"""Two clones with a worker each and a coordinator, which share nothing but git, a DVC remote and a Prefect server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from flows.workers import host_name
from tests.pipeline.flows.project import Project

pytestmark = pytest.mark.slow


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def shared(project: Project, tmp_path: Path) -> Project:
    """The coordinator's clone, with a remote that the workers' clones know of too."""
    project.dvc("remote", "add", "-d", "shared", str(tmp_path / "remote"))
    # DVC keeps no run cache of a stage without dependencies.
    graph = project.root / "dvc.yaml"
    graph.write_text(
        graph.read_text().replace("    outs: [prepare.txt]", "    deps: [step.py]\n    outs: [prepare.txt]")
    )
    git(project.root, "commit", "-qam", "a remote")
    return project


@contextmanager
def worker(shared: Project, root: Path) -> Iterator[Project]:
    """A clone of its own, with its own cache, that takes stages."""
    git(shared.root, "clone", "-q", str(shared.root), str(root))
    clone = Project(root, {**shared.env, "PREFECT_HOME": str(root / ".prefect"), "PREFECT_RUNNER_POLL_FREQUENCY": "1"})
    clone.trouble(left={"seconds": 8}, right={"seconds": 8})
    command, name = [sys.executable, "-m", "flows.workers"], host_name(root)
    with root.with_suffix(".log").open("wb") as sink:
        process = subprocess.Popen(command, cwd=root, env=clone.env, stdout=sink, stderr=sink)
    try:
        end = time.monotonic() + 60
        while name not in ready(shared):
            assert process.poll() is None and time.monotonic() < end, root.with_suffix(".log").read_text()
            time.sleep(0.3)
        yield clone
    finally:
        process.terminate()
        process.wait(timeout=40)


def ready(project: Project) -> set[str]:
    found = project.api("deployments/filter", flows={"name": {"any_": ["stage"]}})
    return {one["name"] for one in found if one["status"] == "READY" and not one["paused"]}


def test_without_a_host_it_says_how_to_start_one(shared: Project) -> None:
    ended = shared.run("--workers")
    assert ended.code == 1
    assert "no host is running `posttrain workers`. Run `posttrain workers` in each clone" in ended.err


def test_a_host_makes_nothing_that_the_coordinator_has_made(shared: Project, tmp_path: Path) -> None:
    assert shared.run("prepare").code == 0
    with worker(shared, tmp_path / "a") as host:
        ended = shared.run("--workers", "branch@left")
        assert ended.code == 0, ended.err
    assert ended.states == {"prepare": "Cached", "branch@left": "Completed"}
    assert sorted(file.stem for file in (host.root / "seen").glob("*.json")) == ["left"]


def test_a_host_keeps_to_the_timeout_and_makes_what_is_committed(shared: Project, tmp_path: Path) -> None:
    shared.runs({}, {"timeout": 20})
    with worker(shared, tmp_path / "a") as host:
        changed = shared.run("--workers", "branch@right")
        assert changed.code == 1
        assert "--workers: changed since the last commit: params.yaml. Commit them" in changed.err
        git(shared.root, "commit", "-qam", "a timeout")
        git(host.root, "pull", "-q")
        host.trouble(right={"seconds": 600})
        late = shared.run("--workers", "branch@right")
    assert (late.code, late.states["branch@right"]) == (1, "Failed")
    assert "dvc repro timed out after" in late.err
    end = time.monotonic() + 5  # Python's resource tracker ends a moment after its process
    while host.processes() and time.monotonic() < end:
        time.sleep(0.1)
    assert host.left_running() == []


def test_what_was_handed_to_a_dead_host_goes_to_another(shared: Project, tmp_path: Path) -> None:
    with worker(shared, tmp_path / "b"), worker(shared, tmp_path / "a") as dying:
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # another process may end meanwhile
                if process.cmdline()[1:3] == ["-m", "flows.workers"] and process.cwd() == str(dying.root):
                    process.kill()  # without a word to the server, which takes it for serving a while longer
        assert host_name(dying.root) in ready(shared)
        ended = shared.run("--workers", "prepare")
    assert (ended.code, ended.states) == (0, {"prepare": "Completed"}), ended.err
    assert (tmp_path / "b" / "seen" / "prepare.json").exists()


def test_a_stage_of_a_host_that_dies_goes_to_one_that_comes_later(shared: Project, tmp_path: Path) -> None:
    with worker(shared, tmp_path / "a") as dying:
        dying.trouble(prepare={"seconds": 600})
        flow = shared.start("--workers", "prepare")
        dying.wait_begun("prepare")
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", "flows.workers"] and process.cwd() == str(dying.root):
                    family = [process, *process.children(recursive=True)]
        for process in family:
            process.kill()  # as where the machine loses its power
        with worker(shared, tmp_path / "b"):
            ended = shared.finish(flow)
    assert (ended.code, ended.states) == (0, {"prepare": "Completed"}), ended.err
    assert "has not answered for 40 s; another host takes the stage" in ended.err
    assert (tmp_path / "b" / "seen" / "prepare.json").exists()


def test_two_hosts_share_the_stages(shared: Project, tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = [stack.enter_context(worker(shared, tmp_path / name)) for name in "ab"]
        for host in hosts:
            host.trouble(left={"seconds": 25}, right={"seconds": 25})  # a busy machine starts the other one later
        ended = shared.run("--workers")
        logs = "".join((tmp_path / f"{name}.log").read_text()[-3000:] for name in "ab")
        assert ended.code == 0, ended.err + logs
        assert set(ended.states.values()) == {"Completed"}
        assert not (shared.root / "seen").exists(), "the coordinator ran no stage"
        ran = {
            name: host for host in hosts for name in ("left", "right") if (host.root / "seen" / f"{name}.json").exists()
        }
        assert ran["left"].root != ran["right"].root
        (begin_1, end_1), (begin_2, end_2) = (ran[name].span(name) for name in ("left", "right"))
        assert max(begin_1, begin_2) < min(end_1, end_2), "at the same time"
        assert json.loads(shared.dvc("status", "--json")) == {}
        assert git(shared.root, "status", "--porcelain", "dvc.lock").strip() == "?? dvc.lock", "it wrote the lock"
        assert (shared.root / "join.txt").read_text() == "prepare\nleft\nprepare\nright\njoin\n"
        assert set(shared.run("--workers").states.values()) == {"Cached"}

        step = shared.root / "step.py"
        step.write_text(f"{step.read_text()}\n# edited\n")
        git(shared.root, "add", "-A")
        git(shared.root, "commit", "-qm", "results, and an edit")
        moved = shared.run("--workers", "prepare")
        assert moved.code == 1
        assert "git fetch && git checkout --force" in moved.err, "a clone at another commit refuses"
