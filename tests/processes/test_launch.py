"""Processes of a run, really started and really killed: one error line, nothing alive after it and no folder left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from posttrain.errors import PosttrainError
from posttrain.processes.hosts import ADDRESS, HOST, HOSTS, WAIT, place, share
from posttrain.processes.join import join
from posttrain.processes.others import differences
from tests.workspace import ROOT, environment

ENDED_S = 5.0
"""How long after a death anything of the run may live."""
LONG = 100_000


class Started:
    """A process of a run, with its folder for temporary files."""

    def __init__(self, module: str, folder: Path, words: tuple[object, ...], env: Mapping[str, str]) -> None:
        self.folder, self.temporary = folder, folder / f"tmp-{module}-{time.monotonic_ns()}"
        self.temporary.mkdir(parents=True)
        (folder / "params.yaml").write_text("sft: {runs: {main: {processes: 4}}}\n")
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.processes.{module}", *map(str, words)],
            cwd=folder,
            env=environment() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)} | dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def others(self) -> list[psutil.Process]:
        """The processes that it has started, by their numbers, once the run counts."""
        assert came_true((self.folder / "round").exists, 60), self.process.communicate(timeout=5)
        found = psutil.Process(self.process.pid).children(recursive=True)
        return sorted(found, key=lambda one: int(one.environ()["POSTTRAIN_RANK"]))

    def ended(self) -> tuple[int, str, str]:
        """Its exit code, what it printed, and its errors."""
        printed, errors = self.process.communicate(timeout=60)
        return self.process.returncode, printed, errors

    def left(self) -> list[Path]:
        """What it left in the folder for temporary files."""
        return list(self.temporary.iterdir())


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes, and ends what a failing test leaves."""
    runs: list[Started] = []

    def started(module: str, *words: object, folder: str = "run", **env: object) -> Started:
        runs.append(Started(module, tmp_path / folder, words, {name: str(value) for name, value in env.items()}))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


@pytest.fixture
def on_two_hosts(start: Start) -> Callable[..., tuple[Started, Started]]:
    """Starts a run whose two hosts have the same number of processes each."""

    def started(*words: object, folder: str = "run") -> tuple[Started, Started]:
        env = {HOSTS: 2, ADDRESS: f"127.0.0.1:{free_port()}", WAIT: 60}
        first = start("counting", *words, **env, **{HOST: 0})
        return first, start("joining", *words, folder=folder, **env, **{HOST: 1})

    return started


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def came_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if _runs(one)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def assert_all_end(runs: list[Started], processes: list[psutil.Process]) -> None:
    """Nothing of the run is alive, or left on the disk, some seconds from now."""
    began = time.monotonic()
    over = came_true(lambda: not alive(processes) and all(run.process.poll() is not None for run in runs), ENDED_S)
    assert over, [one.cmdline() for one in alive(processes)]
    print(f"nothing alive after {time.monotonic() - began:.2f} s")
    assert came_true(lambda: not any(run.left() for run in runs), ENDED_S)


def test_all_processes_do_their_work_and_leave_nothing(start: Start) -> None:
    run = start("counting", 3, 5)
    assert run.ended() == (0, "done\n", "")
    assert not run.left()


def test_a_process_that_is_killed_ends_all(start: Start) -> None:
    run = start("counting", 3, LONG)
    others = run.others()
    others[1].kill()
    assert_all_end([run], others)
    status, _, errors = run.ended()
    assert status == 1
    assert errors.splitlines()[-1] == (
        "error: sft@main: process 3 of 3 was ended by signal 9 (SIGKILL). The system may have killed it because memory "
        "ran out. The next run resumes from the last checkpoint, where there is one"
    )
    assert errors.count("error: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_first_process_that_is_killed_ends_all(start: Start, how: signal.Signals) -> None:
    run = start("counting", 3, LONG)
    others = run.others()
    run.process.send_signal(how)
    assert_all_end([run], others)


@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_no_folder(start: Start) -> None:
    """As Ctrl-C in a terminal, or the end of a flow's stage."""
    run = start("counting", 3, LONG)
    others = run.others()
    for one in [*others, psutil.Process(run.process.pid)]:
        one.send_signal(signal.SIGTERM)
    assert_all_end([run], others)


@pytest.mark.slow
def test_a_folder_that_all_processes_left_is_removed_by_the_next_run(start: Start) -> None:
    run = start("counting", 2, LONG)
    all_of = [*run.others(), psutil.Process(run.process.pid)]
    for one in all_of:
        one.suspend()
    for one in all_of:
        one.kill()
    run.process.wait()
    (folder,) = run.left()
    os.utime(folder, (1, 1))

    living = start("counting", 2, LONG, folder="living", TMPDIR=run.temporary)
    assert living.others()
    assert not folder.exists()
    (folder,) = run.left()
    os.utime(folder, (1, 1))
    assert start("counting", 2, 3, folder="next", TMPDIR=run.temporary).ended()[0] == 0
    assert folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rank", "error"),
    [
        (
            "error",
            1,
            "error: sft@main: process 2 of 3 ended with exit code 1: my/data line 3: the row is wrong. Fix it",
        ),
        ("same", 0, "error: my/data line 3: the row is wrong. Fix it"),
        ("error", 0, "error: my/data line 3: the row is wrong. Fix it"),
        ("bug", 2, "error: sft@main: process 3 of 3 ended with exit code 1: ValueError: a defect of the code"),
        ("exit", 2, "error: sft@main: process 3 of 3 ended with exit code 3: it printed nothing"),
    ],
)
def test_an_error_in_any_process_is_one_line(start: Start, fault: str, rank: int, error: str) -> None:
    run = start("counting", 3, LONG, fault, rank, 5)
    status, _, errors = run.ended()
    assert status == 1
    assert errors.splitlines()[-1].startswith(error), errors
    assert errors.count("error: ") == 1
    assert ("Traceback" in errors) == (fault == "bug")
    assert not run.left()


def test_two_hosts_do_their_work(on_two_hosts: Callable[..., tuple[Started, Started]]) -> None:
    first, second = on_two_hosts(4, 5)
    status, printed, errors = first.ended()
    assert (status, errors) == (0, "")
    assert printed.endswith("sft@main: host 1 has joined\ndone\n")
    status, printed, errors = second.ended()
    assert (status, errors) == (0, "")
    assert printed.endswith("sft@main: joined as host 1 with processes 3 to 4 of 4\nsft@main: the run is done\n")
    assert not first.left()
    assert not second.left()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("victim", ["first", "its worker", "joined", "its worker there"])
def test_a_death_on_either_host_ends_both(
    on_two_hosts: Callable[..., tuple[Started, Started]], victim: str, how: signal.Signals
) -> None:
    first, second = on_two_hosts(4, LONG)
    here = first.others()
    there = psutil.Process(second.process.pid).children(recursive=True)
    assert [len(here), len(there)] == [1, 2]
    hit = {
        "first": psutil.Process(first.process.pid),
        "its worker": here[0],
        "joined": psutil.Process(second.process.pid),
        "its worker there": there[1],
    }[victim]
    hit.send_signal(how)
    if how == signal.SIGTERM and "worker" in victim:
        time.sleep(1)
        assert len(alive([*here, *there])) == 3, "signals are for the process that started it"
        hit.kill()
    assert_all_end([first, second], [*here, *there])
    errors = [run.ended()[2] for run in (first, second)]
    if victim != "first":
        said = {
            "its worker": "process 2 of 4 was ended by signal 9",
            "joined": "host 1 has ended" if how == signal.SIGKILL else "host 1 was told to end",
            "its worker there": "process 4 of 4 was ended by signal 9",
        }[victim]
        assert said in errors[0].splitlines()[-1], errors
        assert errors[0].count("error: ") == 1
    if victim != "joined":
        assert errors[1].count("error: ") == 1, errors
        assert ("process" if victim != "first" else "it has ended") in errors[1], errors


@pytest.mark.slow
def test_hosts_that_differ_are_refused(start: Start) -> None:
    env = {HOSTS: 2, ADDRESS: f"127.0.0.1:{free_port()}", WAIT: 30}
    first = start("counting", 4, 5, **env, **{HOST: 0})
    other = start("joining", 4, 5, folder="other", **env, **{HOST: 1})
    (other.folder / "params.yaml").write_text("sft: {runs: {main: {processes: 4, epochs: 2.0}}}\n")
    for run in (first, other):
        status, _, errors = run.ended()
        assert status == 1
        assert "sft runs main epochs (none on host 0, 2.0 on host 1)" in errors.splitlines()[-1], errors
        assert errors.count("error: ") == 1


@pytest.mark.slow
def test_hosts_must_share_the_folder_of_checkpoints(start: Start) -> None:
    env = {HOSTS: 2, ADDRESS: f"127.0.0.1:{free_port()}", WAIT: 30}
    for run in (
        start("counting", 4, 5, **env, **{HOST: 0}),
        start("joining", 4, 5, folder="other", **env, **{HOST: 1}),
    ):
        status, _, errors = run.ended()
        assert status == 1
        assert "host 1 has another folder checkpoints" in errors.splitlines()[-1], errors
        assert "on a file system that all hosts share" in errors
    assert not [file for file in run.folder.rglob("*") if "host-1" in file.name]


@pytest.mark.slow
def test_a_host_that_comes_twice_and_one_that_counts_otherwise_are_refused(start: Start) -> None:
    env = {HOSTS: 2, ADDRESS: f"127.0.0.1:{free_port()}", WAIT: 60}
    first = start("counting", 4, LONG, **env, **{HOST: 0})
    start("joining", 4, LONG, **env, **{HOST: 1})
    first.others()
    assert "host 0: the run has a host 1 already" in start("joining", 4, 5, **env, **{HOST: 1}).ended()[2]
    assert (
        "the run has 2 hosts, and POSTTRAIN_HOSTS is 3 on host 2"
        in (start("joining", 4, 5, **env | {HOSTS: 3}, **{HOST: 2}).ended()[2])
    )
    with socket.create_connection(("127.0.0.1", int(env[ADDRESS].rpartition(":")[2]))) as stranger:  # type: ignore[attr-defined]
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
    assert first.process.poll() is None


@pytest.mark.slow
def test_who_waits_in_vain_says_for_what(start: Start) -> None:
    port = free_port()
    env = {HOSTS: 2, ADDRESS: f"127.0.0.1:{port}", WAIT: 2}
    alone = start("joining", 4, 5, **env, **{HOST: 1})
    status, printed, errors = alone.ended()
    assert status == 1
    assert f"waits for host 0 at 127.0.0.1:{port} (Connection refused)" in printed
    assert f"host 0 did not start the run at 127.0.0.1:{port} in time (Connection refused)" in errors
    first = start("counting", 4, 5, **env, **{HOST: 0})
    status, printed, errors = first.ended()
    assert status == 1
    assert f"waits at 127.0.0.1:{port} for host 1" in printed
    assert "of 2 hosts, 1 did not join" in errors.splitlines()[-1]
    assert "in time. See what they print, or set POSTTRAIN_JOIN_TIMEOUT" in errors.splitlines()[-1]


@pytest.mark.slow
def test_a_port_in_use_and_an_address_elsewhere_are_errors(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for address in (f"127.0.0.1:{server.getsockname()[1]}", "192.0.2.77:29500", "no.such.name.invalid:29500"):
            status, _, errors = start("counting", 4, 5, **{HOSTS: 2, HOST: 0, ADDRESS: address, WAIT: 1}).ended()
            assert status == 1
            assert errors.startswith(f"error: {ADDRESS}: "), errors
            assert errors.count("\n") == 1, errors


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({HOSTS: "two"}, "POSTTRAIN_HOSTS: 'two' is no number"),
        ({HOSTS: "0"}, "POSTTRAIN_HOSTS: '0' is no number of 1 or more"),
        ({HOSTS: "2"}, "POSTTRAIN_HOST: POSTTRAIN_HOSTS = 2, and this host has no number"),
        ({HOSTS: "2", HOST: "2"}, "POSTTRAIN_HOST: 2 is too large for POSTTRAIN_HOSTS = 2"),
        ({HOSTS: "2", "SLURM_NODEID": "5"}, "SLURM_NODEID: 5 is too large"),
        ({HOSTS: "2", HOST: "1"}, "POSTTRAIN_ADDRESS: '' is no address"),
        ({HOSTS: "2", HOST: "1", ADDRESS: "node-0"}, "POSTTRAIN_ADDRESS: 'node-0' is no address"),
        ({HOSTS: "2", HOST: "1", ADDRESS: "node-0:99999"}, "is no address"),
    ],
)
def test_wrong_places_are_errors(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], said: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PosttrainError) as raised:
        place()
    assert said in str(raised.value)


def test_the_number_of_a_host_comes_from_slurm_and_kubernetes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place() is None
    monkeypatch.setenv(HOSTS, "3")
    monkeypatch.setenv(ADDRESS, "[fd00::1]:29500")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    found = place()
    assert found == (3, 1, "fd00::1", 29500)
    assert found is not None
    assert share(6, found) == range(2, 4)
    with pytest.raises(PosttrainError, match="processes = 4 cannot be divided among POSTTRAIN_HOSTS = 3"):
        share(4, found)
    monkeypatch.setenv("SLURM_NODEID", "2")
    monkeypatch.setenv(HOST, "0")
    assert (place() or found).host == 0


def test_a_host_does_not_wait_for_a_run_that_hosts_cannot_divide(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "params.yaml").write_text("sft: {runs: {main: {processes: 4}}}\n")
    monkeypatch.chdir(tmp_path)
    for name, value in {HOSTS: "3", HOST: "1", ADDRESS: f"127.0.0.1:{free_port()}", WAIT: "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PosttrainError, match="processes = 4 cannot be divided among POSTTRAIN_HOSTS = 3"):
        join("sft/main")


def test_a_host_that_is_told_to_end_while_it_waits_says_so_in_a_line(start: Start) -> None:
    env = {HOSTS: 2, HOST: 1, ADDRESS: f"127.0.0.1:{free_port()}", WAIT: 60, "PYTHONUNBUFFERED": 1}
    waiting = start("joining", 4, 5, **env)
    mark = waiting.folder / "checkpoints/.held/sft@main.host-1"
    assert came_true(mark.exists, 60), waiting.process.communicate(timeout=5)
    waiting.process.terminate()
    status, _, errors = waiting.ended()
    assert status == 128 + signal.SIGTERM
    assert errors == "error: stopped by SIGTERM. A run that this host had joined stops on all hosts\n"
    assert not mark.exists()


def test_what_hosts_do_not_share_is_named() -> None:
    ours = {"code": {"files": {"posttrain/a.py": "1"}, "packages": {"torch": "2.1"}}, "inputs": {"data/x": "1"}}
    theirs = json.loads(json.dumps(ours))
    assert differences(ours, theirs, 1) == []
    theirs["code"]["files"]["posttrain/a.py"] = "2"
    theirs["code"]["packages"]["torch"] = "2.2"
    theirs["inputs"] = {"data/y": "1"}
    assert differences(ours, theirs, 1) == [
        "files posttrain/a.py",
        "packages torch (2.1 on host 0, 2.2 on host 1)",
        "data/x",
        "data/y",
    ]
