"""Settings that an engine, or samples of earlier weights, cannot serve are refused before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.errors import EngineError, ParamsError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.runs.distill import DISTILL
from posttrain.pipeline.runs.online import ONLINE, PolicyRun
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.vllm.engine import bytes_next_to_training, own_options
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.settings.params import check
from posttrain.settings.plain import merge
from posttrain.train.loop import checkpoint_settings
from tests.library.models.tiny import tiny_model

BASE: dict[str, Any] = {
    "start": "sft/main", "data": "mine/prompts", "corpus": "none", "reward_model": "none",
    "rollout": {"engine": "vllm"}, "correction": "truncate",
}  # fmt: skip


def settings(algorithm: str, **over: Any) -> Any:
    given, row = merge({**BASE, "algorithm": algorithm}, over), {**DISTILL, **ONLINE}[algorithm]
    if row.model is not PolicyRun:
        del given["correction"]
    if algorithm not in ONLINE:
        del given["corpus"]
        given |= {"teacher": "base/other", "demonstrations": "mine/chat" if over.get("own", 1) < 1 else "none"}
    return check(row.model, row.row.merged(given), where=f"online.runs.{algorithm}")


@pytest.mark.parametrize(
    "algorithm", ["grpo", "ppo", "dapo", "rloo", "gspo", "reinforce", "online_dpo", "raft", "reverse_kl"]
)
@pytest.mark.parametrize("rollout", [{}, {"ahead": 1}, {"engine": "builtin", "ahead": 1}])
def test_most_algorithms_take_samples_of_an_engine(algorithm: str, rollout: dict[str, Any]) -> None:
    assert settings(algorithm, rollout=rollout).rollout.foreign


@pytest.mark.parametrize("kind", ["lora", "dora", "qlora"])
def test_every_adapter_is_sampled_by_an_engine(kind: str) -> None:
    assert settings("grpo", adapter=kind).rollout.foreign


@pytest.mark.parametrize("servers", [2, [[1]], [[1], [2, 3]], [[0, 1]]])
def test_servers_are_a_number_or_gpus(servers: Any) -> None:
    assert settings("grpo", rollout={"engine_servers": servers}).rollout.engine_servers == servers
    assert settings("grpo", rollout={"engine_args": {"tensor_parallel_size": 2}}).rollout.engine_servers == 1


def test_how_many_servers_there_are_names_no_other_checkpoints() -> None:
    named = [checkpoint_settings(settings("grpo", rollout={"engine_servers": n})) for n in (1, 2, [[1]])]
    assert named[0] == named[1] == named[2] and "engine_servers" not in named[0]["rollout"]


def test_servers_take_of_the_trainers_gpus_what_is_on_them() -> None:
    memory, device = (8e9, 3e9), torch.device("cuda")

    def taken(servers: Any, processes: int = 1) -> float:
        return bytes_next_to_training(memory, servers, processes, device) / 1e9

    assert taken(1) == 8 + 3 + 2 and taken(2) == 2 * (8 + 2) + 3
    assert taken([[1], [2, 3]]) == 0
    assert taken([[0], [1], [2]]) == 8 + 1 + 2
    assert taken([[0, 1], [2]]) == (8 + 1.5) / 2 + 2
    assert taken([[1]], processes=2) == 8 + 3 + 2, "the second process trains there"
    assert taken([[2], [1, 3]], processes=2) == (8 + 1.5) / 2 + 2
    assert bytes_next_to_training(memory, [[0]], 1, torch.device("cpu")) == 0


def test_servers_of_other_hosts_take_nothing_here_and_name_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, "localhost, far")
    memory, device = (8e9, 3e9), torch.device("cuda")

    def taken(servers: Any) -> float:
        return bytes_next_to_training(memory, servers, 1, device) / 1e9

    assert taken(1) == 8 + 3 + 2 and taken(2) == taken(3) - 8 - 2 - 0.5 == 8 + 1.5 + 2
    assert taken([[1], [0]]) == 0 and taken([[0], [0]]) == 8 + 1.5 + 2
    assert settings("grpo", rollout={"engine_servers": [[0], [0]]}).rollout.engine_servers == [[0], [0]]
    with pytest.raises(ParamsError, match=r"each GPU once on a host .their hosts: POSTTRAIN_VLLM_HOSTS"):
        settings("grpo", rollout={"engine_servers": [[0], [1], [0]]})


def test_settings_of_vllm_become_its_options() -> None:
    given = {"quantization": "fp8", "enable_prefix_caching": False, "async_scheduling": True, "block_size": 16}
    given |= {"speculative_config": {"method": "ngram"}, "compilation_config.cudagraph_num_of_warmups": 1}
    given |= {"cudagraph_capture_sizes": [1, 2]}
    assert settings("grpo", rollout={"engine_args": given}).rollout.engine_args == given
    assert own_options(given) == [
        "--quantization=fp8", "--no-enable_prefix_caching", "--async_scheduling", "--block_size=16",
        '--speculative_config={"method": "ngram"}', "--compilation_config.cudagraph_num_of_warmups=1",
        "--cudagraph_capture_sizes", "1", "2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "over", "said"),
    [
        ("grpo", {"correction": "none"}, r"online\.runs\.grpo\.correction = none: .*Set correction: {type: truncate}"),
        (
            "grpo",
            {"sampling": {"rows": 8}},
            r"online\.runs\.grpo\.sampling: unknown key\. Did you mean 'rollout\.sampling'\?",
        ),
        ("grpo", {"correction": "none", "rollout": {"engine": "builtin", "ahead": 1}}, "Set correction"),
        ("grpo", {"rollout": {"sampling": {"top_p": 0.9}}, "allow_unsupported": True}, r"top_p = 0\.9.*engine builtin"),
        ("grpo", {"rollout": {"sampling": {"top_k": 5}}, "allow_unsupported": True}, "top_k = 5.*engine builtin"),
        (
            "grpo",
            {"rollout": {"engine_args": {"max_num_seqs": 8}}},
            "engine_args.max_num_seqs: sampling.rows decides it",
        ),
        (
            "grpo",
            {"rollout": {"engine_args": {"enable-lora": True}}},
            "engine_args.enable-lora: the run's key `adapter`",
        ),
        ("grpo", {"rollout": {"engine_args": {"-O": 3}}}, "engine_args.-O = 3: expected the name of a setting of vLLM"),
        (
            "grpo",
            {"rollout": {"engine_args": {"trust_remote_code": True}}},
            "code that comes with a model is never run",
        ),
        (
            "grpo",
            {"rollout": {"engine_args": {"override_generation_config": {"repetition_penalty": 2}}}},
            "engine_args.override_generation_config: samples must follow the policy's own probabilities",
        ),
        ("grpo", {"rollout": {"engine_args": {"hf-overrides.rope_theta": 3}}}, "the config of the start model sets"),
        ("grpo", {"rollout": {"engine_args": {"hf_token": "hf_a"}}}, "engine_args.hf_token: posttrain sets it"),
        (
            "gspo",
            {"router": {"replay": "sampler"}, "rollout": {"engine_args": {"pipeline-parallel-size": 2}}},
            "rollout.engine_args.pipeline-parallel-size: vLLM does not report experts with this setting. Remove it",
        ),
        (
            "grpo",
            {"rollout": {"engine": "builtin", "engine_args": {"block_size": 16}}},
            "engine builtin has no extra settings",
        ),
        (
            "grpo",
            {"rollout": {"engine": "builtin", "engine_servers": 2}},
            "engine builtin has no servers.*engine: vllm",
        ),
        (
            "grpo",
            {"rollout": {"engine_servers": 0}},
            "engine_servers = 0: expected the number of servers.*2, or .*1.*2, 3",
        ),
        ("grpo", {"rollout": {"engine_servers": []}}, r"engine_servers = \[\]: expected the number of servers"),
        (
            "grpo",
            {"rollout": {"engine_servers": [[1], []]}},
            "expected the number of servers, or the GPUs of each server",
        ),
        ("grpo", {"rollout": {"engine_servers": [[-1]]}}, "expected the number of servers, or the GPUs of each server"),
        ("grpo", {"rollout": {"engine_servers": [[1], [2, 1]]}}, "each GPU once"),
        ("grpo", {"rollout": {"engine_servers": [1, 2]}}, "engine_servers"),
        (
            "grpo",
            {"rollout": {"engine_servers": [[1, 2]], "engine_args": {"tensor-parallel-size": 2}}},
            "engine_args.tensor-parallel-size: engine_servers has the GPUs of each server",
        ),
        ("nash_md", {}, "a mixture of two models.*engine builtin"),
        ("gkd", {"own": 0.5, "rollout": {"ahead": 1}}, "skips rounds, .* Use ahead 0"),
        (
            "grpo",
            {"rollout": {"ahead": 1, "engine_args": {"sleep": True}}},
            "engine_args.sleep: with ahead = 1, the servers sample during training. Use one of the two",
        ),
        ("grpo", {"rollout": {"engine_args": {"sleep": 2}}}, "engine_args.sleep = 2: expected true or false"),
        ("grpo", {"rollout": {"engine_args": {"enable-sleep-mode": True}}}, "the key `sleep` sets it"),
        ("grpo", {"rollout": {"engine": "sglang"}}, "engine"),
        ("grpo", {"rollout": {"ahead": 2}}, "ahead"),
    ],
)
def test_what_cannot_be_is_refused(algorithm: str, over: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        settings(algorithm, **over)


def test_a_sampling_without_training_cannot_sleep() -> None:
    with pytest.raises(ParamsError, match=r"engine_args\.sleep: it only works in a rollout"):
        check(EvaluateConfig, {"engine": "vllm", "engine_args": {"sleep": True}}, where="evaluate.settings")


@pytest.mark.parametrize("hosts", ["", "gpu1"])
def test_servers_with_memory_of_their_own_cannot_sleep(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a process is started."""
    monkeypatch.setenv(HOSTS, hosts)
    model = tiny_model()
    sampled = SampledModel(model, Path(), None, Runtime(DeviceParams(device="cpu")))  # type: ignore[arg-type]
    said = "server on another host has no memory to free" if hosts else r"GPUs \[1\], which training does not use"
    opened = ENGINES["vllm"].open(sampled, SamplingParams(rows=8), 64, "rollout", {"sleep": True}, [[1]])
    with pytest.raises(EngineError, match=said), opened:
        pass
