"""vLLM itself on another host: a run by ssh, to a server of ssh on loopback."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.plugins.vllm_ssh.ssh import SSH, RemoteProcess
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import PYTHON
from posttrain.text.chat import ChatText
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder
from tests.pipeline.engines.support import Recorded, grpo, models_of
from tests.pipeline.engines.test_process import running
from tests.pipeline.engines.test_real_vllm import TOLERANCE, VLLM, gap, qwen_folder, requests
from tests.pipeline.engines.test_real_vllm import pytestmark as of_vllm
from tests.plugins.vllm_ssh.sshd import needs_sshd, opened
from tests.plugins.vllm_ssh.test_ssh import family, gone

pytestmark = [*of_vllm, needs_sshd]


def test_grpo_by_vllm_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv(PYTHON, VLLM)
    monkeypatch.setenv(HOSTS, "far")
    folder, keys = qwen_folder(tmp_path), tmp_path / "sshd"
    keys.mkdir()
    models, asked, params = models_of(folder), requests(24), SamplingParams(max_tokens=20, rows=16)
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    with opened(keys) as sshd:
        monkeypatch.setenv(SSH, sshd.command())
        with ENGINES["vllm"].open(model, params, 200, "rollout", {"enable_prefix_caching": False}) as sampler:
            assert isinstance(sampler, EngineSampler)
            [server] = sampler._servers
            assert isinstance(server, RemoteProcess)
            recorded = Recorded(sampler)
            run = grpo(folder, models, recorded, engine="vllm", rounds=2)  # type: ignore[arg-type]
            rows = training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(tmp_path / "log.csv")).rows
            assert len(recorded.samples) == 24 and all(row["sampler_kl"] < 1e-8 for row in rows)
            sampler.sync(models.policy, "after")
            assert gap(models, asked, sampler.generate(asked, params, 1)) < TOLERANCE and server.starts == 1
            found = family(server.folder)
            workers = psutil.Process(found["server"].pid).children(recursive=True)
            assert workers, "vLLM has a process for its engine"
            far = [found["server"], found["far"], *workers]
            assert not any("hf_secret" in one.environ().values() for one in far if running(one.pid))
        assert gone(server) and not any(running(one.pid) for one in far)
