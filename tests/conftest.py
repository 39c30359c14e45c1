"""What many tests need: one finished smoke pipeline for the whole session, and private copies of it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import posttrain.pipeline  # noqa: F401  the library's messages are those of the pipeline in all tests
from benchmarks.faults.processes import Server
from tests.pipeline.serve.served import Served
from tests.workspace import ROOT, dvc, make_workspace, run

SMOKE_S = 2400
"""Seconds of a test that runs the pipeline first, on a machine that does other things too."""
LONG_S = 1200
"""Seconds that a test which takes minutes may take."""
SMOKE_PARAMS = ROOT / "recipes" / "smoke.yaml"

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.pop("COLUMNS", None)  # a worker of pytest-xdist has 80, where texts would be folded
os.unsetenv("COLUMNS")  # which pytest's import of readline has set behind os.environ, for processes of a test
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control starts it so in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the finished pipeline first: while one worker of `--dist worksteal` runs it, the others do the rest.

    Those that need Prefect's server stand together, so that few workers start one. The long ones begin, so that no
    worker is alone with them at the end.
    """
    items.sort(key=lambda item: max((mark.args[0] for mark in item.iter_markers("timeout")), default=0) < LONG_S)
    for fixture in ("server", "smoke_workspace"):
        items.sort(key=lambda item: fixture not in getattr(item, "fixturenames", ()))
    for item in items:  # one of them runs the whole pipeline before it begins
        if "smoke_workspace" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SMOKE_S))


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    """Threads of a test would stay in its process: slow next to other workers, and with other rounding."""
    yield
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smoke_workspace(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A copy of this checkout where `dvc repro` has run with recipes/smoke.yaml; to change one, take `own_workspace`.

    The workers of pytest-xdist share one: the first to come runs it, the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    workspace, report = shared / "smoke", shared / "smoke.log"
    with FileLock(shared / "smoke.lock"):
        if not report.exists():
            make_workspace(workspace, SMOKE_PARAMS)
            repaired = run(workspace, sys.executable, "-m", "posttrain", "repair")  # as `make run` does
            assert not repaired.returncode, repaired.stdout
            done = dvc(workspace, "repro")
            report.write_text(f"{done.returncode}\n{done.stdout}", encoding="utf-8")
    status, _, output = report.read_text(encoding="utf-8").partition("\n")
    assert status == "0", f"dvc repro failed in {workspace}:\n{output[-6000:]}"
    return workspace


@pytest.fixture(scope="session")
def stage_server() -> Iterator[Server]:
    """Runs stages in forks of a process that has imported the library, which saves seconds for each."""
    with Server() as server:
        yield server


@pytest.fixture
def own_workspace(smoke_workspace: Path, tmp_path: Path) -> Path:
    """A private copy of the finished smoke pipeline, cache and all, for a test that changes it."""
    target = tmp_path / "workspace"
    shutil.copytree(smoke_workspace, target, symlinks=True)
    return target


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers that do not outlive the test."""
    started: list[Served] = []

    def start(model: Path, **variables: str) -> Served:
        started.append(Served(model, tmp_path / "cache", **variables))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


os.environ.setdefault("NO_PROXY", "127.0.0.1")


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small workspace whose results were written by hand, with the working folder set to it."""
    from tests.pipeline.report import workspace  # only these tests need what it imports

    folder = workspace.make(tmp_path / "finished")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "1000")  # pytest's workers have 80: tables would be cut
    return folder
