"""A flow runs what is stale, at the same time where it can, and tells the truth about it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flows.server import find

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.flows.project import Project

ALL = ["prepare", "branch@left", "branch@right", "join", "sub/dvc.yaml:extra"]


@pytest.mark.slow
def test_run_edit_and_undo(project: Project) -> None:
    project.trouble(left={"seconds": 6}, right={"seconds": 6})
    first = project.run()
    assert first.code == 0, first.err
    assert first.states == dict.fromkeys(ALL, "Completed")
    assert "left at work" in first.err
    assert project.dvc("status", "--json").strip() == "{}"

    recorded = project.task_runs(first)
    assert {name: run["state_name"] for name, run in recorded.items()} == dict.fromkeys(ALL, "Completed")
    left, right = recorded["branch@left"], recorded["branch@right"]
    assert max(left["start_time"], right["start_time"]) < min(left["end_time"], right["end_time"])
    (begin_1, end_1), (begin_2, end_2) = project.span("left"), project.span("right")
    assert max(begin_1, begin_2) < min(end_1, end_2)

    project.trouble()
    again = project.run()
    assert again.code == 0
    assert again.states == dict.fromkeys(ALL, "Cached")
    assert {run["state_name"] for run in project.task_runs(again).values()} == {"Cached"}
    assert "didn't change" not in again.err  # so no process of DVC was started for a stage

    project.runs({"n": 2}, {})
    edited = project.run()
    # The branch writes the same bytes, so DVC finds that nothing downstream has changed.
    assert edited.states == {name: "Completed" if name == "branch@left" else "Cached" for name in ALL}
    project.runs({}, {})
    undone = project.run("branch@left")
    assert undone.states == {"prepare": "Cached", "branch@left": "RunCached"}
    assert project.dvc("status", "--json").strip() == "{}"

    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [project.run_id(first.err)]}})
    assert {"stages", "timings", "results", "metrics", "plots"} == {artifact["key"] for artifact in artifacts}
    assert {one["data"] for one in artifacts if one["key"] in ("timings", "plots")} == {"This run has none."}


DRAWN = """
  draw:
    cmd: "printf 'step,loss\\\\n0,1\\\\n1,0.5\\\\n' > curve.csv"
    plots: [curve.csv]
plots:
  - The loss, as it falls: {x: step, y: {curve.csv: loss}}
"""


@pytest.mark.slow
def test_plots_that_have_a_name_are_kept_as_pictures(project: Project) -> None:
    graph = project.root / "dvc.yaml"
    graph.write_text(graph.read_text() + DRAWN)
    ended = project.run("draw")
    assert ended.code == 0, ended.err
    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [project.run_id(ended.err)]}})
    (page,) = [one for one in artifacts if one["key"] == "plots"]
    head, _, data = page["data"].removesuffix(")").partition("base64,")
    assert head == "![The loss, as it falls](data:image/png;" and base64.b64decode(data).startswith(b"\x89PNG")


MEASURED = """
  measure:
    cmd: cp given.json score.json
    deps: [given.json]
    metrics:
      - score.json: {cache: false}
"""


@pytest.mark.slow
def test_metrics_are_held_against_the_last_commit(project: Project) -> None:
    graph, given = project.root / "dvc.yaml", project.root / "given.json"
    graph.write_text(graph.read_text() + MEASURED)
    given.write_text('{"accuracy": 0.5}')
    project.dvc("repro", "-s", "measure")
    for words in (["add", "--all"], ["commit", "--quiet", "--message", "measured"]):
        subprocess.run(["git", *words], cwd=project.root, check=True)
    given.write_text('{"accuracy": 0.7}')
    ended = project.run("measure")
    assert ended.code == 0, ended.err
    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [project.run_id(ended.err)]}})
    (found,) = [json.loads(one["data"]) for one in artifacts if one["key"] == "metrics"]
    assert found == [{"file": "score.json", "metric": "accuracy", "old": 0.5, "new": 0.7, "diff": 0.2}]
    graph.write_text(graph.read_text().replace("cp given.json score.json", "exit 1"))
    (project.root / "score.json").write_text('{"accuracy": 0.9}')
    failed = project.run("measure")
    assert failed.states["measure"] == "Failed"
    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [project.run_id(failed.err)]}})
    data = {one["key"]: json.loads(one["data"]) for one in artifacts if one["type"] == "table"}
    assert data["metrics"] == [], "the figures are not those of this flow"
    assert data["stages"][0]["state"] == "Failed"


SAYS = """
import pathlib, sys, time
pathlib.Path(".dvc/tmp/failures").mkdir(parents=True, exist_ok=True)
from posttrain.measure.progress import Progress, keep_progress
pathlib.Path("logs").mkdir(exist_ok=True)
keep_progress("say")
progress = Progress("say", 12)
progress.advance(3, {"reward": 1.08})
time.sleep(1.5)
progress.advance(3, {"reward": 1.09})
pathlib.Path(".dvc/tmp/failures/say.txt").write_text("apples: cannot be added to pears. Take pears\\n")
print("Traceback (most recent call last):\\n  many lines\\nValueError: pears")
sys.exit(3)
"""


@pytest.mark.slow
def test_an_operator_reads_what_ran_how_far_it_is_and_why_it_failed(project: Project) -> None:
    graph, script = project.root / "dvc.yaml", project.root / "say.py"
    script.write_text(SAYS)
    graph.write_text(f"{graph.read_text()}\n  say:\n    cmd: {sys.executable} say.py\n    outs: [said.txt]\n")
    project.runs({"n": 2}, {})
    ended = project.run("say")
    assert ended.code == 1
    (found,) = project.api("flow_runs/filter", flow_runs={"id": {"any_": [project.run_id(ended.err)]}})
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=project.root, capture_output=True, text=True)
    assert found["name"] == f"say @ {commit.stdout.strip()} left.n=2"
    assert {"by hand", "master"} == {*found["tags"]}
    assert found["parameters"] == {"targets": ["say"], "selection": "stale", "executor": "local"}
    task = project.task_runs(ended)["say"]
    failed = "say failed: apples: cannot be added to pears. Take pears"
    assert task["state"]["message"] == f"{failed}\n  exit code 3; log: {project.root}/logs/say.log"
    assert project.errors(task, "ValueError: pears")[:2] == ["Traceback (most recent call last):", "ValueError: pears"]
    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [project.run_id(ended.err)]}})
    (progress,) = [one for one in artifacts if one["type"] == "progress"]
    assert progress["data"] == 50
    assert re.fullmatch(r"say: 6/12 steps  \S+/s  0:0\d left  reward 1.09", progress["description"])


def test_a_failure_leaves_the_other_branch_to_finish(project: Project) -> None:
    project.trouble(left={"fails": 1}, right={"seconds": 1})
    ended = project.run()
    assert ended.code == 1
    assert ended.states == {
        "prepare": "Completed",
        "branch@left": "Failed",
        "branch@right": "Completed",
        "join": "NotRun",
        "sub/dvc.yaml:extra": "NotRun",
    }
    message = ended.err[ended.err.rindex("branch@left failed: ") :]
    assert "left: cannot add apples to pears" in message
    assert "not run: join, sub/dvc.yaml:extra" in message
    recorded = project.task_runs(ended)
    failed = recorded["branch@left"]["state"]
    assert failed["type"] == "FAILED"
    assert "cannot add apples to pears" in failed["message"]
    assert "left: cannot add apples to pears (exit code 1)" in message, "the stage's own exit code, not DVC's 255"
    behind = recorded["join"]["state"]
    assert (behind["type"], behind["name"]) == ("CANCELLED", "NotRun"), "no bar that grows for ever"
    assert project.errors(recorded["branch@left"], "failed to reproduce")


@pytest.mark.slow
def test_retries_and_timeout(project: Project) -> None:
    project.runs({"retries": 1}, {"timeout": 2})
    (project.root / "trouble.json").write_text(json.dumps({"left": {"fails": 1}, "right": {"seconds": 60, "child": 1}}))
    ended = project.run("branch")
    assert ended.code == 1
    assert ended.states == {"prepare": "Completed", "branch@left": "Completed", "branch@right": "Failed"}
    assert re.search(r"branch@right failed: .*timed out after", ended.err)
    assert project.left_running() == []


@pytest.mark.slow
def test_gpus_are_slots(project: Project) -> None:
    project.runs({"gpus": 1}, {"gpus": 1})
    project.trouble(left={"seconds": 1}, right={"seconds": 1})
    one_gpu = {**project.env, "CUDA_VISIBLE_DEVICES": "7"}
    ended = type(project)(project.root, one_gpu).run("branch")
    assert ended.code == 0, ended.err
    (begin_1, end_1), (begin_2, end_2) = project.span("left"), project.span("right")
    assert end_1 <= begin_2 or end_2 <= begin_1
    assert (project.root / "seen" / "left.begun").read_text() == "7"
    project.runs({"gpus": 3}, {"gpus": 1})
    too_many = type(project)(project.root, one_gpu).run("--force", "branch")
    assert too_many.code == 1
    assert "a stage needs 3 gpus, but Prefect's limit" in too_many.err


@pytest.mark.slow
def test_a_held_lock_loses_no_work(project: Project) -> None:
    project.trouble(prepare={"seconds": 4})
    process = project.start("prepare")
    project.wait_begun("prepare")
    # DVC lets go of its lock while a stage's command runs; somebody else now holds it past the end of the command.
    hold = "import time\nfrom dvc.repo import Repo\nwith Repo('.', _wait_for_lock=True).lock:\n    time.sleep(10)\n"
    with subprocess.Popen([sys.executable, "-c", hold], cwd=project.root, env=project.env):
        ended = project.finish(process)
    assert ended.states == {"prepare": "Completed"}
    assert project.dvc("status", "prepare", "--json").strip() == "{}"


@pytest.mark.slow
def test_nothing_configured(bare: Project) -> None:
    first = bare.run("prepare")
    assert first.code == 0, first.err
    assert first.states == {"prepare": "Completed"}
    assert (bare.root / ".prefect" / "prefect.db").exists()
    assert not (bare.root / ".prefect" / "server.json").exists()
    assert bare.left_running() == []
    quick = bare.run("prepare")
    assert quick.states == {"prepare": "Cached"}
    assert "Flow run" not in quick.err  # no server is started where there is nothing to tell


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
@pytest.mark.slow
def test_nothing_but_the_loopback_is_connected_to(bare: Project, tmp_path: Path) -> None:
    """The flow, its server, DVC and the stage, with every process that they start, as the kernel sees them."""
    log = tmp_path / "connections"
    watched = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto", "-o", str(log)]
    env = {name: value for name, value in bare.env.items() if name != "DO_NOT_TRACK"}
    command = [*watched, sys.executable, "-m", "flows.pipeline", "prepare"]
    done = subprocess.run(command, cwd=bare.root, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = re.findall(r"sa_family=AF_INET.*?\"([^\"]+)\"", log.read_text())
    assert set(seen) == {"127.0.0.1"}, set(seen)


def test_a_server_in_the_folder_is_found(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    note = tmp_path / "server.json"
    assert find(tmp_path) is None
    note.write_text(json.dumps({"pid": os.getpid(), "url": server}))
    assert find(tmp_path) == server
    note.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:9/api"}))
    assert find(tmp_path) is None
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    note.write_text(json.dumps({"pid": gone.pid, "url": server}))
    assert find(tmp_path) is None
    note.write_text("{")
    assert find(tmp_path) is None


@pytest.mark.slow
def test_a_dead_server_that_was_named_is_an_error(bare: Project) -> None:
    env = {**bare.env, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    ended = type(bare)(bare.root, env).run("prepare")
    assert ended.code == 1
    assert "no server answers at http://127.0.0.1:9/api" in ended.err
