"""A stage that several processes share, under DVC: each death, and the run after it, which ends with the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipeline.processes.test_launch import ENDED_S, alive, came_true
from tests.workspace import ROOT, dvc, environment

STAGE = "sft@main"


@pytest.fixture(scope="module")
def shared(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pipeline whose run sft.runs.main shall be shared by two processes; that has not run yet."""
    folder = tmp_path_factory.mktemp("shared") / "workspace"
    shutil.copytree(smoke_workspace, folder, symlinks=True)
    params = folder / "params.yaml"
    text = params.read_text()
    assert text.count("      epochs: 3.0\n") == 1
    params.write_text(
        text.replace("      epochs: 3.0\n", "      epochs: 2.0\n      processes: 2\n      checkpoint_every: 10\n")
    )
    done = dvc(folder, "repro", "-s", "code")
    assert done.returncode == 0, done.stdout
    return folder


class Repro:
    """A `dvc repro` of the shared stage."""

    def __init__(self, folder: Path, temporary: Path, **env: object) -> None:
        self.folder, self.temporary = folder, temporary
        temporary.mkdir()
        self.log = temporary.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dvc", "repro", "-s", STAGE],
                cwd=folder,
                env=environment() | {"TMPDIR": str(temporary)} | {name: str(value) for name, value in env.items()},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return DVC, the process of rank 0 and the other one, once there is a checkpoint."""
        step = lambda: bool(list((self.folder / "checkpoints/sft/main").glob("*/step-*")))  # noqa: E731
        assert came_true(lambda: step() or self.process.poll() is not None, 120), self.log.read_text()
        assert self.process.poll() is None, self.log.read_text()
        below = psutil.Process(self.process.pid).children(recursive=True)
        ranks = {one.environ().get("RANK", "0"): one for one in below if "stages.sft" in one.cmdline()}
        return [psutil.Process(self.process.pid), ranks["0"], ranks["1"]]

    def kill(self) -> None:
        for one in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
            one.kill()


@pytest.fixture
def repro(shared: Path, tmp_path: Path) -> Iterator[Callable[..., Repro]]:
    """Starts `dvc repro` in a copy of the workspace, and ends what a failing test leaves."""
    shutil.copytree(shared, tmp_path / "workspace", symlinks=True)
    started: list[Repro] = []

    def start(**env: object) -> Repro:
        started.append(Repro(tmp_path / "workspace", tmp_path / f"tmp-{len(started)}", **env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
        one.process.wait()


def result(folder: Path) -> dict[str, bytes]:
    """What the stage has written, without its record."""
    files = [*(folder / "models/sft/main").rglob("*"), folder / "metrics/sft/main.json", folder / "plots/sft/main.csv"]
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in files if one.is_file()}


@pytest.fixture(scope="module")
def expected(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The results of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "workspace"
    shutil.copytree(shared, folder, symlinks=True)
    run = Repro(folder, folder.parent / "tmp")
    assert run.process.wait(300) == 0, run.log.read_text()
    assert "2 processes share the run" in run.log.read_text()
    assert not list(run.temporary.glob("posttrain-*"))
    return result(folder)


VICTIMS = ("dvc", "the stage", "another process", "all")


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_run_after_a_death_ends_with_the_same_bytes(
    repro: Callable[..., Repro], expected: dict[str, bytes], victim: str
) -> None:
    run = repro()
    processes = run.processes()
    began = time.monotonic()
    if victim == "all":
        os.killpg(run.process.pid, signal.SIGKILL)
    else:
        processes[VICTIMS.index(victim)].kill()
    assert came_true(lambda: not alive(processes[1:]), ENDED_S), processes
    print(f"{victim}: nothing alive after {time.monotonic() - began:.2f} s")
    assert run.process.wait(30) != 0
    if victim == "another process":
        log = run.log.read_text()
        assert log.count("error: ") == 1, log
        assert f"error: {STAGE}: process 2 of 2 was ended by signal 9 (SIGKILL)" in log
        failure = run.folder / f".dvc/tmp/failures/{STAGE}.txt"
        assert failure.read_text().startswith(f"{STAGE}: process 2 of 2 was ended by signal 9")
    if victim != "all":
        assert came_true(lambda: not list(run.temporary.glob("posttrain-*")), ENDED_S)
    again = repro()
    assert again.process.wait(300) == 0, again.log.read_text()
    assert "resumes from the checkpoint" in again.log.read_text()
    assert result(run.folder) == expected


SCHEDULERS = {
    "torchrun": f"{sys.executable} -m torch.distributed.run --no-python --nproc-per-node={{processes}}",
    "srun": f"{sys.executable} {ROOT}/tests/pipeline/processes/srun.py --ntasks={{processes}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_processes_of_a_scheduler_train_what_our_own_train(
    repro: Callable[..., Repro], expected: dict[str, bytes], scheduler: str
) -> None:
    run = repro(POSTTRAIN_LAUNCH=SCHEDULERS[scheduler])
    assert run.process.wait(300) == 0, run.log.read_text()
    assert run.log.read_text().count("2 processes share the run") == 1, "only the first process prints"
    assert result(run.folder) == expected
    done = dvc(run.folder, "status", STAGE)
    assert "up to date" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("victim", [*VICTIMS, "waiting"])
def test_a_death_among_processes_of_a_scheduler_ends_all(
    repro: Callable[..., Repro], expected: dict[str, bytes], victim: str
) -> None:
    """`waiting`: the stage's own process, which waits for the scheduler."""
    run = repro(POSTTRAIN_LAUNCH=SCHEDULERS["torchrun"])
    processes = run.processes()
    everything = psutil.Process(run.process.pid).children(recursive=True)
    waiting = next(one for one in everything if "stages.sft" in one.cmdline())
    if victim == "all":
        os.killpg(run.process.pid, signal.SIGKILL)
    else:
        (waiting if victim == "waiting" else processes[VICTIMS.index(victim)]).kill()
    assert came_true(lambda: not alive(everything), ENDED_S), alive(everything)
    assert run.process.wait(30) != 0
    if victim == "another process":
        assert "rank      : 1" in (log := run.log.read_text()) and "Signal 9 (SIGKILL)" in log, log
        assert (run.folder / f".dvc/tmp/failures/{STAGE}.txt").read_text().startswith(f"{STAGE}: ")
    again = repro()
    assert again.process.wait(300) == 0, again.log.read_text()
    assert "resumes from the checkpoint" in again.log.read_text()
    assert result(run.folder) == expected
