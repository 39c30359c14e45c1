"""Processes of a run, really started and really killed: one error line, nothing alive after it and no folder left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from posttrain.errors import ParamsError, PipelineError
from posttrain.isolation.library import library_command
from posttrain.locks import held_folder
from posttrain.pipeline.processes import launch
from posttrain.pipeline.processes.children import Children
from tests.workspace import ROOT, environment

ENDED_S = 5.0
"""How long after a death anything of the run may live."""
LONG = 100_000


class Started:
    """A process of a run, with its folder for temporary files."""

    def __init__(self, folder: Path, by: Sequence[str], words: Sequence[object], env: Mapping[str, str]) -> None:
        self.folder, self.temporary = folder, folder / f"tmp-{time.monotonic_ns()}"
        self.temporary.mkdir(parents=True)
        (folder / "params.yaml").write_text("sft: {runs: {main: {processes: 4}}}\n")
        self.process = subprocess.Popen(
            [*by, sys.executable, "-m", "tests.pipeline.processes.counting", *map(str, words)],
            cwd=folder,
            env=environment() | {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)} | dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def others(self) -> list[psutil.Process]:
        """Return the processes of the run that it has started, by their numbers, once the run counts."""
        assert came_true((self.folder / "round").exists, 60), self.process.communicate(timeout=5)
        found = psutil.Process(self.process.pid).children(recursive=True)
        ranks = {int(one.environ().get("RANK", -1)): one for one in found}
        return [ranks[rank] for rank in sorted(ranks) if rank >= 0]

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

    def started(*words: object, by: Sequence[str] = (), folder: str = "run", **env: object) -> Started:
        runs.append(Started(tmp_path / folder, by, words, {name: str(value) for name, value in env.items()}))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


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


@pytest.mark.slow
def test_all_processes_do_their_work_and_leave_nothing(start: Start) -> None:
    run = start(3, 5)
    assert run.ended() == (0, "done\n", "")
    assert not run.left()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all(start: Start) -> None:
    run = start(3, LONG)
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
    run = start(3, LONG)
    others = run.others()
    run.process.send_signal(how)
    assert_all_end([run], others)


@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_no_folder(start: Start) -> None:
    """As Ctrl-C in a terminal, or the end of a flow's stage."""
    run = start(3, LONG)
    others = run.others()
    for one in [*others, psutil.Process(run.process.pid)]:
        one.send_signal(signal.SIGTERM)
    assert_all_end([run], others)


def test_a_folder_that_nobody_holds_is_removed_by_the_next_process(tmp_path: Path) -> None:
    left, of_another = tmp_path / "engine-abcd_123", tmp_path / "engine-abcd_123-0-2"
    held = held_folder("engine-", tmp_path, "a test")
    for folder in (left, of_another, held):
        folder.mkdir(exist_ok=True)
        os.utime(folder, (1, 1))
    held_folder("engine-", tmp_path, "a test")
    assert not left.exists() and of_another.exists() and held.exists()


@pytest.mark.slow
def test_a_folder_that_all_processes_left_is_removed_by_the_next_run(start: Start) -> None:
    run = start(2, LONG)
    all_of = [*run.others(), psutil.Process(run.process.pid)]
    for one in all_of:
        one.suspend()
    for one in all_of:
        one.kill()
    run.process.wait()
    (folder,) = run.left()
    os.utime(folder, (1, 1))

    living = start(2, LONG, folder="living", TMPDIR=run.temporary)
    assert living.others()
    assert not folder.exists()
    (folder,) = run.left()
    os.utime(folder, (1, 1))
    assert start(2, 3, folder="next", TMPDIR=run.temporary).ended()[0] == 0
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
    run = start(3, LONG, fault, rank, 5)
    status, _, errors = run.ended()
    assert status == 1
    assert errors.splitlines()[-1].startswith(error), errors
    assert errors.count("error: ") == 1
    assert ("Traceback" in errors) == (fault == "bug")
    assert not run.left()


def run_of(*scripts: str) -> launch._Run:
    """A run whose other processes have run these scripts."""
    run = launch._Run("online@grpo")
    run.children = Children(["sh", "-c", f"case $RANK in {' '.join(scripts)} esac"], len(scripts) + 1, "file:///a", {})
    assert run.children.ended(30)
    return run


def test_the_likeliest_cause_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    alone = launch._Run("online@grpo")
    assert alone.deaths() == [] and alone.reason() is None
    run = run_of("1) echo broken pipe; exit 1;;", "2) kill -9 $$;;", "3) echo bad; exit 2;;")
    assert sorted(death.order for death in run.deaths()) == [0, 1, 2]
    error = run.reason()
    assert isinstance(error, PipelineError) and error.what == "process 3 of 4 was ended by signal 9 (SIGKILL)"
    own = run_of("1) echo bad; exit 2;;")
    assert own.reason(most=0) is None and own.reason() is not None and "bad" in capfd.readouterr().err
    run.end()
    own.end()


def test_an_error_that_another_process_caused_is_explained() -> None:
    run = run_of("1) echo bad; exit 2;;")
    assert launch._behind(ParamsError(what="a", where="b", fix="c"), run) is None
    assert launch._behind(ValueError("a defect"), run) is None
    found = launch._behind(RuntimeError("gloo: connection closed by peer"), run)
    assert found is not None and found.what == "process 2 of 2 ended with exit code 2: bad"
    assert launch._is_loss(RuntimeError("NCCL error")) is True and launch._is_loss(ValueError("a")) is False
    assert launch._is_loss(PipelineError(what="NCCL", where="a", fix="b")) is False
    run.end()


def test_the_device_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    assert launch._device("auto", 0) == "cpu" and launch._device("cpu", 1) == "cpu"
    for device, words in (("mps", "cannot share an mps device"), ("cuda", "no GPU was found")):
        with pytest.raises(ParamsError, match=words):
            launch._device(device, 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert launch._device("auto", 3) == "cuda" and chosen == [1]
    with pytest.raises(ParamsError, match="the run has 3 processes on this host, but can use only 2 GPUs"):
        launch._device("cuda", 0, 3)


def test_the_command_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py", "a"])
    main.__spec__ = None
    assert launch.own_command() == [sys.executable, "train.py", "a"]
    main.__spec__ = ModuleSpec("stages.sft", None)
    assert launch.own_command() == library_command("stages.sft", "a")
    main.__spec__ = None
    monkeypatch.setattr(sys, "argv", [""])
    with pytest.raises(PipelineError, match="other processes cannot run code that was typed in a session"):
        launch.own_command()
