"""Several servers behind one sampler: each answers its part, and one that ends is started again alone."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import torch

from posttrain.errors import EngineError
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.processes.stage import hear_ctrl_c
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import Completion, SamplingParams
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder
from tests.pipeline.engines.support import engine, models_of, servers, use_server
from tests.pipeline.engines.test_adapters import adapted, update
from tests.pipeline.engines.test_engine import local, requests, run, same_training
from tests.pipeline.engines.test_process import running

pytestmark = pytest.mark.slow
SAMPLING = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def ids(completions: list[Completion]) -> list[list[int]]:
    return [one.ids for one in completions]


def pids(processes: Sequence[EngineProcess]) -> list[int]:
    return [one._process.pid for one in processes if one._process is not None]


@pytest.mark.parametrize("ahead", [0, 1])
def test_grpo_with_two_servers_has_the_ids_of_grpo_in_process(
    ahead: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, versions, weights, _ = run(folder, tmp_path / "in", monkeypatch, ahead=ahead)
    use_server(monkeypatch, tmp_path, ENGINE_ASKED=str(tmp_path))
    both = servers(2)
    try:
        found, of, trained, rows = run(folder, tmp_path / "out", monkeypatch, *both, ahead=ahead)
    finally:
        for one in both:
            one.close()
    assert (found, of) == (expected, versions)
    assert same_training(trained, weights)
    assert all(0 <= row["sampler_kl"] < (1e-9 if not ahead else 1) for row in rows), (
        "each server had the weights of each round"
    )
    assert [one.starts for one in both] == [1, 1] and not both[0].folder.exists()
    asked = [(tmp_path / f"asked-socket-{number}-1").read_text().splitlines() for number in (0, 1)]
    rounds = [[name for name in one if not name.endswith(":probe")] for one in asked]
    assert [len(one) for one in rounds] == [24, 24] and not {*rounds[0]} & {*rounds[1]}


def test_a_killed_server_alone_is_started_again_and_both_where_both_are_killed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_ASKED=str(tmp_path))
    models, both = models_of(folder), servers(2)
    sampler, sampling = engine(models, folder, *both), SamplingParams(max_tokens=12, rows=2)
    try:
        sampler.sync(models.policy, "a")
        expected = ids(local(models, folder).generate(requests(40), sampling, 1))
        assert ids(sampler.generate(requests(40), sampling, 1)) == expected
        for killed in (both[1:], both):
            before, finished = [one.starts for one in both], list[int]()

            def advance(more: int, killed: Sequence[EngineProcess] = killed, finished: list[int] = finished) -> None:
                finished.append(more)
                for pid in pids(killed) if len(finished) == 6 else ():
                    os.kill(pid, signal.SIGKILL)

            assert ids(sampler.generate(requests(40), sampling, 1, advance=advance)) == expected
            assert finished == [1] * 40, "what was answered is not asked again"
            assert [one.starts - was for one, was in zip(both, before, strict=True)] == [one in killed for one in both]
        alive = pids(both)
        with torch.no_grad():
            models.policy.lm_head.weight.mul_(1.3)
        sampler.sync(models.policy, "b")
        assert pids(both) == alive and {one.ask("GET")["weights"] for one in both} == {"b"}
        assert ids(sampler.generate(requests(9), SAMPLING, 4)) == ids(
            local(models, folder).generate(requests(9), SAMPLING, 4)
        )
        assert len([*both[0].folder.glob("weights-*")]) == 2, "both load the same files, which take turns"
        for one in (1, 2, 5):
            assert len(sampler.generate(requests(one), SAMPLING, 0)) == one
    finally:
        sampler.close()
    assert not any(map(running, alive)) and not both[0].folder.exists()


def test_adapters_reach_both_or_are_merged_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder(tmp_path)
    for takes, environment in ((True, {}), (False, {"ENGINE_WITHOUT_ADAPTERS": "1"})):
        use_server(monkeypatch, tmp_path, **environment)
        models, both = adapted(folder, {}), servers(2)
        sampler = engine(models, folder, *both)
        try:
            for number in range(2):
                update(models, number)
                sampler.sync(models.policy, f"v{number}")
                assert ids(sampler.generate(requests(9), SAMPLING, 1)) == ids(
                    local(models, folder).generate(requests(9), SAMPLING, 1)
                )
            assert [one.starts for one in both] == ([1, 1] if takes else [2, 2])
        finally:
            sampler.close()
    assert capfd.readouterr().out.count("the adapter is merged into the model for each round, since ") == 1


def opened_model(models: ModelSet, folder: Path) -> SampledModel:
    return SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)


def test_each_server_has_its_gpus_and_a_share_of_the_rows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-b,6,7")
    model, sampling = opened_model(models_of(folder), folder), SamplingParams(rows=9, kv_gb=1.2)
    with ENGINES["vllm"].open(model, sampling, 64, "rollout", {"block_size": 16}, [[1], [2, 3]]) as sampler:
        assert isinstance(sampler, EngineSampler)
        sampler.sync(model.policy, "a")
        assert len(sampler.generate(requests(5), SAMPLING, 0)) == 5
        started = [psutil.Process(pid) for pid in pids(sampler._servers)]
        lines = [" ".join(one.cmdline()) for one in started]
        shown = [one.environ()["CUDA_VISIBLE_DEVICES"] for one in started]
    assert shown == ["GPU-b", "6,7"]
    assert all("--max-num-seqs 5 " in line and "--block_size=16" in line for line in lines)
    assert [re.findall(r"--tensor-parallel-size (\d)", line) for line in lines] == [[], ["2"]]
    kept = [re.findall(r"--kv-cache-memory-bytes (\d+)", line) for line in lines]
    assert kept == [["600000000"], ["300000000"]], "kv_gb is of all servers, vLLM's option of a GPU"
    assert not any(one.is_running() for one in started)
    with (
        pytest.raises(EngineError, match=r"rollout\.engine_servers: GPU 4 has no place among the 4 that are shown"),
        ENGINES["vllm"].open(model, sampling, 64, "rollout", {}, [[1], [4]]),
    ):
        pass


def test_a_start_that_is_awaited_ends_with_the_sampler(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path)
    hear_ctrl_c()  # as a stage does
    monkeypatch.setenv("POSTTRAIN_VLLM", shlex.join([sys.executable, "-c", "import time; time.sleep(900)"]))
    models, both = models_of(folder), servers(2)
    sampler = engine(models, folder, *both)
    seen: list[int] = []

    def interrupt() -> None:
        while len(pids(both)) < 2:
            time.sleep(0.01)
        seen.extend(pids(both))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        sampler.sync(models.policy, "a")
    thread.join()
    assert len(seen) == 2 and not any(map(running, seen)) and not both[0].folder.exists()
