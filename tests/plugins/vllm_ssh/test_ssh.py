"""Servers on other hosts, by a real ssh server on loopback: the same completions, and no server outlives its run."""

from __future__ import annotations

import json
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
from posttrain.plugins.vllm_ssh.ssh import SSH, RemoteProcess
from posttrain.sampling.engines import ENGINES
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import PYTHON, EngineProcess
from tests.library.models.tiny import tiny_folder
from tests.pipeline.engines.support import engine, models_of, use_server
from tests.pipeline.engines.test_adapters import adapted, update
from tests.pipeline.engines.test_engine import SAMPLING, local, requests, run
from tests.pipeline.engines.test_process import running
from tests.pipeline.engines.test_servers import ids, opened_model
from tests.plugins.vllm_ssh.sshd import Sshd, needs_sshd, opened, use_hosts
from tests.workspace import ROOT

pytestmark = [pytest.mark.slow, needs_sshd]
SILENT_S = 6.0
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


def family(folder: Path) -> dict[str, psutil.Process]:
    """The processes of a server that names a folder: `ssh` here, the `far` end, the `server` there, and others."""
    found = {}
    for process in psutil.process_iter():
        words = process.cmdline() if running(process.pid) else []
        if f"/dev/shm/{folder.name}" in " ".join(words):
            far, server = words[2:3] == ["-c"] and "os.read(0, 1)" in words[3], "--parent" in words
            kind = "far" if far else "server" if server else "ssh" if process.name() == "ssh" else str(process.pid)
            found[kind] = process
    return found


def folders(process: EngineProcess) -> list[Path]:
    """The folders of servers of this run, there and here."""
    return [*MEMORY.glob(f"{process.folder.name}*")]


def gone(process: EngineProcess) -> bool:
    """Whether nothing is left of a run's servers, there and here."""
    return not family(process.folder) and not folders(process)


def awaited(true: Callable[[], bool], seconds: float = GONE_S) -> bool:
    latest = time.monotonic() + seconds
    while not true() and time.monotonic() < latest:
        time.sleep(0.1)
    return true()


def test_a_run_whose_server_dies_once_has_the_bytes_of_a_run_with_a_server_here(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_ALONE="1")
    here = EngineProcess([], {})
    expected = run(folder, tmp_path / "here", monkeypatch, here)
    here.close()
    use_hosts(monkeypatch, sshd, place=tmp_path, faults="die@20", ENGINE_ALONE="1")
    there = RemoteProcess("far", [], {})
    found = run(folder, tmp_path / "there", monkeypatch, there)
    private = MEMORY / f"{there.folder.name}-0-2"
    assert oct(private.stat().st_mode)[-3:] == "700" and there.starts == 2
    kept = [one.name for one in private.glob("weights-*")]
    assert kept == [one.name for one in there.folder.glob("weights-*")] and len(kept) == 1, "old weights are removed"
    there.close()
    assert found[0] == expected[0] and found[1] == expected[1]
    assert torch.equal(found[2], expected[2]) and found[3] == expected[3]
    assert gone(there)


def test_an_adapter_goes_alone_and_a_server_here_shares_the_samples_with_one_there(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, "localhost, far", place=tmp_path, ENGINE_ASKED=str(tmp_path))
    models = adapted(folder, {})
    model = opened_model(models, folder)
    with ENGINES["vllm"].open(model, SAMPLING, 64, "rollout", {}, 2) as sampler:
        assert isinstance(sampler, EngineSampler)
        here, there = sampler._servers
        assert type(here) is EngineProcess and type(there) is RemoteProcess
        for number in range(3):
            update(models, number)
            sampler.sync(models.policy, f"v{number}")
            expected = ids(local(models, folder).generate(requests(9), SAMPLING, 1))
            assert ids(sampler.generate(requests(9), SAMPLING, 1)) == expected
        asked = [(tmp_path / f"asked-socket-{number}-1").read_text().splitlines() for number in (0, 1)]
        assert [len([name for name in one if not name.endswith(":probe")]) for one in asked] == [3 * 4, 3 * 5]
        assert (here.starts, there.starts) == (1, 1)
        place = MEMORY / f"{here.folder.name}-1-1"
        adapter, whole = sorted(sum(file.stat().st_size for file in one.iterdir()) for one in place.glob("weights-*"))
        assert adapter < whole / 2, "the frozen model has come once, then adapters"
    assert gone(here)


@pytest.mark.parametrize("killed", ["server", "far", "ssh"])
def test_a_server_or_connection_that_is_killed_is_started_again_and_the_run_ends_with_the_same_completions(
    killed: str, folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)
    models, there = models_of(folder), RemoteProcess("far", [], {}, silent_s=SILENT_S)
    sampler, sampling = engine(models, folder, there), SamplingParams(max_tokens=12, rows=2)
    before: list[psutil.Process] = []
    finished: list[int] = []

    def advance(more: int) -> None:
        finished.append(more)
        if len(finished) == 6:
            before.extend(family(there.folder).values())
            family(there.folder)[killed].kill()

    try:
        sampler.sync(models.policy, "a")
        expected = ids(local(models, folder).generate(requests(20), sampling, 1))
        assert ids(sampler.generate(requests(20), sampling, 1, advance=advance)) == expected
        assert awaited(lambda: not any(running(one.pid) for one in before)), "it may have answered all before it ended"
        assert ids(sampler.generate(requests(20), sampling, 1)) == expected
        assert there.starts == 2 and finished == [1] * 20
        assert len(before) >= 4
        assert not (MEMORY / f"{there.folder.name}-0-1").exists()
        with torch.no_grad():
            models.policy.lm_head.weight.mul_(1.3)
        sampler.sync(models.policy, "b")
        expected = ids(local(models, folder).generate(requests(9), SAMPLING, 1))
        assert ids(sampler.generate(requests(9), SAMPLING, 1)) == expected
    finally:
        sampler.close()
    assert gone(there)


@pytest.mark.parametrize("stopped", ["ssh", "session"])
def test_a_server_ends_when_the_network_is_lost_and_the_run_continues_when_it_is_there_again(
    stopped: str, folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, "far", "-o", "ServerAliveInterval=1", place=tmp_path)
    models, there = models_of(folder), RemoteProcess("far", [], {}, silent_s=SILENT_S)
    sampler = engine(models, folder, there)
    try:
        sampler.sync(models.policy, "a")
        expected = ids(sampler.generate(requests(9), SAMPLING, 1))
        server = family(there.folder)["server"].pid
        lost = [family(there.folder)["ssh"]] if stopped == "ssh" else sshd.sessions()
        for one in lost:
            one.send_signal(signal.SIGSTOP)
        assert awaited(lambda: not running(server), SILENT_S + GONE_S)
        assert awaited(lambda: not (MEMORY / f"{there.folder.name}-0-1").exists(), SILENT_S + GONE_S)
        assert ids(sampler.generate(requests(9), SAMPLING, 1)) == expected and there.starts == 2
    finally:
        for one in sshd.sessions():
            one.send_signal(signal.SIGCONT)
        sampler.close()
    assert awaited(lambda: gone(there))


def test_signs_of_life_keep_a_server_that_has_nothing_to_do(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)
    models, there = models_of(folder), RemoteProcess("far", [], {}, silent_s=SILENT_S)
    sampler = engine(models, folder, there)
    try:
        sampler.sync(models.policy, "a")
        time.sleep(2 * SILENT_S)
        assert len(sampler.generate(requests(9), SAMPLING, 1)) == 9 and there.starts == 1
    finally:
        sampler.close()


def test_gpus_of_a_host_are_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, "one two")
    monkeypatch.setenv(PYTHON, "a command")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    model, sampling = opened_model(models_of(folder), folder), SamplingParams(rows=9, kv_gb=1.2)
    with ENGINES["vllm"].open(model, sampling, 64, "rollout", {}, [[5], [2, 3], [6]]) as sampler:
        assert isinstance(sampler, EngineSampler)
        of = sampler._servers
        assert [one._host for one in of if isinstance(one, RemoteProcess)] == ["one", "two", "one"]
        assert [one._environment["CUDA_VISIBLE_DEVICES"] for one in of] == ["5", "2,3", "6"]
        assert [one._options[one._options.index("--kv-cache-memory-bytes") + 1] for one in of] == [
            "400000000", "200000000", "400000000",
        ]  # fmt: skip
        assert not any("--gpu-memory-utilization" in one._options for one in of)


HOLDER = """
import sys, time
from pathlib import Path
from posttrain.plugins.vllm_ssh.ssh import RemoteProcess
from tests.pipeline.engines.support import engine, models_of
folder = Path(sys.argv[1])
models = models_of(folder)
sampler = engine(models, folder, RemoteProcess("far", [], {}))
sampler.sync(models.policy, "a")
print(sampler._servers[0].folder, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_there_or_here_soon_after_the_stage_was_killed(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as stage:
        assert stage.stdout is not None
        place = Path(stage.stdout.readline().strip())
        found = family(place)
        assert {"ssh", "far", "server"} < set(found) and len([*MEMORY.glob(f"{place.name}*")]) == 2
        os.kill(stage.pid, signal.SIGKILL)
        assert awaited(lambda: not family(place) and not [*MEMORY.glob(f"{place.name}*")])
    assert not any(running(one.pid) for one in found.values())


def test_what_a_host_lacks_is_said_with_the_words_of_ssh(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)

    def refused(said: str, *, python: str = sys.executable, ssh: str = sshd.command()) -> None:
        monkeypatch.setenv(PYTHON, python)
        monkeypatch.setenv(SSH, ssh)
        with pytest.raises(EngineError, match=said) as error:
            RemoteProcess("far", [], {})
        assert HOSTS in str(error.value)

    refused(r"host far: vLLM is missing in the environment of .*\. Create vLLM's environment there at the same path")
    refused("there is no Python at /no/python: .*/no/python", python="/no/python")
    refused("does not reach the host: .*Permission denied", ssh=sshd.command(key="other_key"))
    refused("does not reach the host: .*onnection refused", ssh=sshd.command().replace(str(sshd.port), "1"))
    refused("does not reach the host: .*resolve hostname far", ssh="ssh -F none")
    refused("does not reach the host: .*ost key verification failed", ssh=sshd.command().replace("=ours", "=another"))
    refused("the command /no/ssh does not exist", ssh="/no/ssh")


def test_a_server_that_does_not_start_there_is_shown_with_its_log(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)
    models = models_of(folder)
    monkeypatch.setenv(PYTHON, "python3 -c 'print(\"no such model\"); raise SystemExit(3)'")
    there = RemoteProcess("far", [], {})
    sampler = engine(models, folder, there)
    with pytest.raises(EngineError, match=r"(?s)on far.*ended with status 3 while it started.*no such model"):
        sampler.sync(models.policy, "a")
    place = MEMORY / f"{there.folder.name}-0-2"
    place.mkdir()
    with pytest.raises(EngineError, match=r"(?s)ended with status 1 .*cannot be created: .*File exists"):
        sampler.sync(models.policy, "a")
    place.rmdir()
    sampler.close()
    assert gone(there)


def test_no_secret_of_the_environment_is_sent(
    folder: Path, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hosts(monkeypatch, sshd, place=tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    models, there = models_of(folder), RemoteProcess("far", [], {"HF_HUB_OFFLINE": "1"})
    sampler = engine(models, folder, there)
    try:
        sampler.sync(models.policy, "a")
        found = family(there.folder)
        shown = found["server"].environ()
        assert shown["HF_HUB_OFFLINE"] == "1" and shown["VLLM_RPC_BASE_PATH"] == f"/dev/shm/{there.folder.name}-0-1"
        assert not any("hf_secret" in found[name].environ().values() for name in ("far", "server"))
    finally:
        sampler.close()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "weights/../../out", ""])
def test_names_of_files_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    place = tmp_path / "private"
    command = [
        sys.executable,
        "-I",
        str(ROOT / "posttrain/plugins/vllm_ssh/far_end.py"),
        str(place),
        "/dev/shm/none",
        "5",
    ]
    line = json.dumps({"file": name, "bytes": 3}).encode() + b"\nabc"
    done = subprocess.run(command, input=line, capture_output=True, timeout=30)
    assert done.returncode == 1 and b"is not the name of a file in the folder" in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_a_server_waits_until_the_one_before_it_has_ended(tmp_path: Path) -> None:
    former, place = tmp_path / "former", tmp_path / "private"
    former.mkdir()
    code = str(ROOT / "posttrain/plugins/vllm_ssh/far_end.py")
    with subprocess.Popen(
        [sys.executable, "-I", code, str(place), str(former), "60"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        assert one.stdin is not None
        one.stdin.write(b"{}\n")
        one.stdin.flush()
        time.sleep(1)
        assert not place.exists() and one.poll() is None
        former.rmdir()
        assert awaited(place.is_dir)
        one.stdin.close()
        assert one.wait(GONE_S) == 1 and not place.exists()
