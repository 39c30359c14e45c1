"""Servers on other hosts, by a real ssh server on loopback: the same completions, and no server outlives its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from posttrain.errors import EngineError
from posttrain.measure.counts import COUNTS
from posttrain.processes.schedulers import HOSTS
from posttrain.sampling.engines import ENGINES
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.process import PYTHON, EngineProcess
from posttrain.sampling.vllm.ssh import SSH, RemoteProcess
from tests.engines.sshd import Sshd, needs_sshd, opened, use_hosts
from tests.engines.support import engine, models_of, use_server
from tests.engines.test_adapters import adapted, update
from tests.engines.test_engine import SAMPLING, local, requests, run
from tests.engines.test_faults import running
from tests.engines.test_servers import ids, opened_model
from tests.models.tiny import tiny_folder
from tests.workspace import ROOT

pytestmark = [pytest.mark.slow, needs_sshd]
SILENT_S = 3.0
"""Seconds without a sign of life after which a server of these tests ends."""
GONE_S = 8.0
"""Seconds within which a server ends after its connection."""
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with opened(tmp_path_factory.mktemp("sshd")) as one:
        yield one


def far_server(socket: Path) -> list[psutil.Process]:
    """The processes there of a server whose socket here is this one: the far end, the server."""
    name = f"/dev/shm/{socket.parent.name}-"
    found = []
    for process in psutil.process_iter():
        words = process.cmdline() if running(process.pid) else []
        if any(word.startswith(name) for word in words) and words[0] != sys.executable + " -I":
            found.append(process)
    return [one for one in found if "runpy" not in " ".join(one.cmdline()) and one.name() != "ssh"]


def folders(process: EngineProcess) -> list[Path]:
    """The folders of servers of this run, there and here."""
    return [*MEMORY.glob(f"{process.folder.name}*")]


def awaited(true: Callable[[], bool], seconds: float = GONE_S) -> bool:
    latest = time.monotonic() + seconds
    while not true() and time.monotonic() < latest:
        time.sleep(0.1)
    return true()


def test_completions_of_a_run_are_those_of_a_server_here_bit_for_bit(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_ALONE="1")
    here = EngineProcess([], {})
    expected = run(folder, tmp_path / "here", monkeypatch, here)
    here.close()
    use_hosts(monkeypatch, sshd, place=tmp_path, ENGINE_ALONE="1")
    there = RemoteProcess("far", [], {})
    found = run(folder, tmp_path / "there", monkeypatch, there)
    private = MEMORY / f"{there.folder.name}-0-1"
    assert oct(private.stat().st_mode)[-3:] == "700" and there.starts == 1
    kept = [one.name for one in private.glob("weights-*")]
    assert kept == [one.name for one in there.folder.glob("weights-*")] and len(kept) == 1, "old weights are removed"
    there.close()
    assert found[0] == expected[0] and found[1] == expected[1]
    assert torch.equal(found[2], expected[2]) and found[3] == expected[3]
    assert not folders(there)
