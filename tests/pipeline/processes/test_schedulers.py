"""Processes that torchrun and srun start: they are one run, hosts that differ are named, and a death ends all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from posttrain.errors import PipelineError, PosttrainError
from posttrain.pipeline.processes.agreement import differences
from posttrain.pipeline.processes.schedulers import (
    ADDRESS,
    LAUNCH,
    LOCAL,
    PORT,
    RANK,
    SIZE,
    check_size,
    first_node,
    read_slurm,
)
from tests.pipeline.processes.test_launch import ENDED_S, LONG, Start, alive, came_true
from tests.workspace import ROOT
from tests.workspace import run as run_in

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
SRUN = [sys.executable, str(ROOT / "tests/pipeline/processes/srun.py")]
SCHEDULERS = {"torchrun": [*TORCHRUN, "--nproc-per-node=2"], "srun": [*SRUN, "--ntasks=2"]}
HOSTS = ("posttrain-one", "posttrain-two")
NETWORK = "10.213.77"


@pytest.fixture(params=["loopback", "namespaces"])
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands of two agents of torchrun: on one host, or in two network namespaces with a cable."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    two = request.param == "namespaces"
    if two and not _connected():
        pytest.skip("this machine makes no network namespaces")
    place = ["--nnodes=2", f"--master-addr={f'{NETWORK}.1' if two else '127.0.0.1'}", f"--master-port={port}"]
    first, second = ([*TORCHRUN, *place, f"--node-rank={one}", "--nproc-per-node=2"] for one in range(2))
    inside = [["ip", "netns", "exec", name] if two else [] for name in HOSTS]
    yield [*inside[0], *first], [*inside[1], *second]
    if two:
        _disconnect()


def _connected() -> bool:
    """Connect two namespaces by a virtual cable, if that is allowed."""
    if shutil.which("ip") is None:
        return False
    _disconnect()
    commands = [f"ip netns add {name}" for name in HOSTS]
    commands += ["ip link add cable0 netns posttrain-one type veth peer name cable1 netns posttrain-two"]
    for number, name in enumerate(HOSTS):
        commands += [f"ip -n {name} addr add {NETWORK}.{number + 1}/24 dev cable{number}"]
        commands += [f"ip -n {name} link set {device} up" for device in ("lo", f"cable{number}")]
    return all(subprocess.run(one.split(), capture_output=True).returncode == 0 for one in commands)


def _disconnect() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_processes_of_a_scheduler_are_one_run(start: Start, scheduler: str) -> None:
    run = start(2, 5, by=SCHEDULERS[scheduler])
    status, printed, errors = run.ended()
    assert (status, printed) == (0, "done\n"), errors
    assert not list(run.folder.glob("checkpoints/.held/*"))


@pytest.mark.slow
def test_agents_on_two_hosts_are_one_run(start: Start, hosts: Sequence[Sequence[str]]) -> None:
    runs = [start(4, 5, by=agent) for agent in hosts]
    ended = [run.ended() for run in runs]
    assert [one[:2] for one in ended] == [(0, "done\n"), (0, "")], ended


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("victim", ["agent", "rank 0", "rank 1", "other agent", "rank 3"])
def test_a_death_on_either_host_ends_both(
    start: Start, hosts: Sequence[Sequence[str]], victim: str, how: signal.Signals
) -> None:
    runs = [start(4, LONG, by=agent) for agent in hosts]
    ranks = [rank for run in runs for rank in run.others()]
    assert len(ranks) == 4
    agents = {"agent": runs[0], "other agent": runs[1]}
    hit = psutil.Process(agents[victim].process.pid) if victim in agents else ranks[int(victim[-1])]
    hit.send_signal(how)
    began = time.monotonic()
    assert came_true(lambda: not alive(ranks), ENDED_S), alive(ranks)
    print(f"nothing alive after {time.monotonic() - began:.2f} s")
    ended = [run.ended() for run in runs]
    assert all(one[0] for one in ended), ended
    assert any("error: sft@main: another process of the run has ended" in one[2] for one in ended), ended
    if victim not in agents:
        assert f"Signal {how.value} ({how.name}) received by PID {hit.pid}" in "".join(one[2] for one in ended), ended


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["error", "bug"])
def test_an_error_of_one_process_is_said_and_ends_all(start: Start, fault: str) -> None:
    run = start(2, LONG, fault, 1, 5, by=SCHEDULERS["srun"])
    status, _, errors = run.ended()
    assert status == 1
    said = {"error": "error: my/data line 3: the row is wrong. Fix it", "bug": "ValueError: a defect of the code"}
    assert said[fault] in errors


@pytest.mark.slow
def test_hosts_that_differ_are_named(start: Start, hosts: Sequence[Sequence[str]]) -> None:
    first, other = start(4, 5, by=hosts[0]), start(4, 5, by=hosts[1], folder="other")
    (other.folder / "params.yaml").write_text("sft: {runs: {main: {processes: 4, epochs: 2.0}}}\n")
    for run in (first, other):
        status, _, errors = run.ended()
        assert status == 1
        what = "sft@main: process 3 differs from process 1: params.yaml "
        assert f"{what}sft runs main epochs (none in process 1, 2.0 in process 3)" in errors, errors


@pytest.mark.slow
def test_hosts_must_share_the_folder_of_checkpoints(start: Start, hosts: Sequence[Sequence[str]]) -> None:
    first, other = start(4, 5, by=hosts[0]), start(4, 5, by=hosts[1], folder="other")
    for run in (first, other):
        status, _, errors = run.ended()
        assert status == 1
        assert "error: sft@main: process 3 has another folder checkpoints" in errors, errors
        assert "on a file system that all hosts share" in errors
        assert not list(run.folder.glob("checkpoints/.held/*"))


@pytest.mark.slow
def test_a_world_of_another_size_is_refused(start: Start) -> None:
    run = start(3, 5, by=SCHEDULERS["srun"])
    status, _, errors = run.ended()
    assert status == 1
    assert "error: params.yaml: sft@main has processes = 3, and WORLD_SIZE = 2. Start as many processes" in errors


def test_a_world_without_a_place_to_meet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ADDRESS, PORT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RANK, "0")
    monkeypatch.setenv(SIZE, "2")
    with pytest.raises(PosttrainError, match="sft@main: WORLD_SIZE is set but MASTER_ADDR is not"):
        check_size("sft@main", 2)
    monkeypatch.setenv(SIZE, "1")
    check_size("sft@main", 2)


@pytest.mark.slow
def test_a_stage_that_trains_nothing_is_refused_by_all_but_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text("data: {files: {own/chat: {processes: 1}}}\n")
    for name, value in {RANK: "1", SIZE: "2", ADDRESS: "127.0.0.1", PORT: "1"}.items():
        monkeypatch.setenv(name, value)
    done = run_in(tmp_path, sys.executable, "-m", "posttrain", "run", "data_files", "own/chat")
    assert done.returncode == 1
    assert "error: params.yaml: data_files@own/chat has processes = 1, but WORLD_SIZE = 2" in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["params.yaml"]


def test_the_variables_of_slurm_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RANK, SIZE, LOCAL, ADDRESS, PORT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "gpu[07-09,12],cpu1"}
    for name, value in {**batch, "SLURM_JOB_ID": "14999"}.items():
        monkeypatch.setenv(name, value)
    read_slurm()
    assert RANK not in os.environ, "a batch script is no task"
    for name, value in {"SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(LAUNCH, "srun -n {processes}")
    read_slurm()
    assert RANK not in os.environ, "a shell of srun, from which POSTTRAIN_LAUNCH starts the processes, is no task"
    monkeypatch.delenv(LAUNCH)
    monkeypatch.delenv("SLURM_LOCALID")
    with pytest.raises(PipelineError, match="SLURM_STEP_ID is set but SLURM_LOCALID is not"):
        read_slurm()
    assert RANK not in os.environ
    monkeypatch.setenv("SLURM_LOCALID", "1")
    read_slurm()
    assert [os.environ[one] for one in (RANK, SIZE, LOCAL, ADDRESS, PORT)] == ["5", "8", "1", "gpu07", "15001"]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node1", "node1"), ("node1,node2", "node1"), ("n[1-2]-ib,m3", "n1-ib"), ("a-[003,007]", "a-003")],
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_what_hosts_do_not_share_is_named() -> None:
    ours = {"code": {"files": {"posttrain/a.py": "1"}, "packages": {"torch": "2.1"}}, "inputs": {"data/x": "1"}}
    theirs = json.loads(json.dumps(ours))
    assert differences(ours, theirs, 3) == []
    theirs["code"]["files"]["posttrain/a.py"] = "2"
    theirs["code"]["packages"]["torch"] = "2.2"
    theirs["inputs"] = {"data/y": "1"}
    assert differences(ours, theirs, 3) == [
        "files posttrain/a.py",
        "packages torch (2.1 in process 1, 2.2 in process 3)",
        "data/x",
        "data/y",
    ]
