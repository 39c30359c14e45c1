"""What ends or stops a server: it is started again with the present weights, or the run ends with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.errors import EngineError
from posttrain.sampling.vllm.process import EngineProcess
from tests.library.models.tiny import tiny_folder
from tests.pipeline.engines.support import engine, models_of, use_server
from tests.pipeline.engines.test_engine import SAMPLING, requests, run, same_training
from tests.workspace import ROOT

pytestmark = pytest.mark.slow
GONE_S = 5
"""Seconds within which a server ends after the stage."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("ahead", "fault"), [(0, "die@20"), (0, "hang@20"), (1, "die@20")])
def test_a_server_that_dies_or_hangs_is_started_again_with_the_present_weights(
    ahead: int, fault: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, versions, weights, _ = run(folder, tmp_path / "in", monkeypatch, ahead=ahead)
    use_server(monkeypatch, tmp_path, fault)
    process = EngineProcess([], {})
    try:
        found, of, trained, _ = run(folder, tmp_path / "out", monkeypatch, process, ahead=ahead)
    finally:
        process.close()
    assert process.starts == 2 and len(list(tmp_path.glob("fault-*"))) == 1
    assert (found, of) == (expected, versions)
    assert same_training(trained, weights)


@pytest.mark.parametrize(
    ("faults", "environment", "said"),
    [
        ("stale@1", {}, "has the weights 'a' after an update to 'b'"),
        ("", {"ENGINE_NAME": "sglang 0.5"}, "the server is 'sglang 0.5', not vLLM"),
        ("", {"ENGINE_PERTURB": "3"}, "first sample differ by .* nats from the trainer's"),
        ("500@2,500@3,500@4,500@5", {}, "1 of 1 completions were not answered in 4 tries .HTTP 500"),
        ("500@1,500@2,500@3,500@4", {}, "1 of 1 completions were not answered in 4 tries .HTTP 500"),
    ],
)
def test_what_cannot_be_mended_ends_the_run_with_the_reason(
    faults: str,
    environment: dict[str, str],
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_server(monkeypatch, tmp_path, faults, **environment)
    models = models_of(folder)
    sampler = engine(models, folder)
    try:
        with pytest.raises(EngineError, match=said):  # noqa: PT012  which of them raises is what differs
            sampler.sync(models.policy, "a")
            sampler.generate(requests(1), SAMPLING, 0)
            sampler.sync(models.policy, "b")
    finally:
        sampler.close()


HOLDER = """
import sys, time
from pathlib import Path
from tests.pipeline.engines.support import engine, models_of, servers
folder = Path(sys.argv[1])
models = models_of(folder)
sampler = engine(models, folder, *servers(2))
sampler.sync(models.policy, "a")
print(*(server._process.pid for server in sampler._servers), sampler._servers[0].folder, flush=True)
time.sleep(600)
"""


def test_servers_and_their_folder_are_gone_soon_after_the_stage_was_killed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as stage:
        assert stage.stdout is not None
        *pids, place = stage.stdout.readline().split()
        family = [int(pid) for pid in pids]
        assert (
            len(family) == 2 and all(map(psutil.pid_exists, family)) and oct(Path(place).stat().st_mode)[-3:] == "700"
        )
        os.kill(stage.pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and (Path(place).exists() or any(map(running, family))):
            time.sleep(0.1)
    assert not Path(place).exists() and not any(map(running, family))


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
