"""A sampler with the test server behind it, and small runs that it samples for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.online.rollout_params import RolloutParams
from posttrain.pipeline.runs.online import ONLINE
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.sampler import Sampler
from posttrain.sampling.vllm.client import EngineSampler, Patience
from posttrain.sampling.vllm.process import PYTHON, EngineProcess
from posttrain.settings.params import check
from posttrain.settings.plain import merge
from posttrain.text.chat import ChatText
from posttrain.train.loop import TrainingParams, TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import function_reward
from tests.library.online.rounds import rounds_of
from tests.workspace import ROOT

DEVICE = Runtime(DeviceParams(device="cpu"))
SERVER = shlex.join([sys.executable, str(ROOT / "tests/pipeline/engines/server.py")])
IMPATIENT = Patience(silent_s=4, health_s=4, pause_s=0.05)
ROLLOUT = {"rounds": 4, "prompts": 3, "group_size": 4, "minibatches": 2, "sampling": {"max_tokens": 8}}


def use_server(patch: pytest.MonkeyPatch, place: Path, faults: str = "", **environment: str) -> None:
    """Let the test server, with these faults, take the place of vLLM's."""
    patch.setenv(PYTHON, SERVER)
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setenv("ENGINE_FAULTS", faults)
    patch.setenv("ENGINE_FAULTS_DONE", str(place))
    for name, value in environment.items():
        patch.setenv(name, value)


def servers(count: int) -> list[EngineProcess]:
    """Servers that share a folder, not started yet."""
    first = EngineProcess([], {})
    return [first, *(EngineProcess([], {}, first=first, number=number) for number in range(1, count))]


def engine(models: ModelSet, folder: Path, *processes: EngineProcess) -> EngineSampler:
    """A sampler with a server of its own, or with these."""
    stops = ChatText(load_tokenizer(folder)).stops
    return EngineSampler(models.policy, folder, stops, models.runtime, processes or servers(1), patience=IMPATIENT)


def low_tokens(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(token % 7 for token in one.row.rest) / 40 for one in rollouts]


class Recorded:
    """A sampler that remembers what it gave: the ids, and the weights that each request was for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.samples: list[tuple[str, list[int]]] = []
        self.versions: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def generate(self, requests: Any, *given: Any, **options: Any) -> Any:
        found = self._inner.generate(requests, *given, **options)
        self.samples += [(one.name, done.ids) for one, done in zip(requests, found, strict=True)]
        self.versions += [self._inner.version] * len(requests)
        return found


def models_of(folder: Path) -> ModelSet:
    """A policy and its reference."""
    return ModelSet.load(DEVICE, folder, frozenset({"ref_logp"}), TrainingParams())


def grpo(folder: Path, models: ModelSet, sampler: Sampler, **rollout: Any) -> TrainingRun:
    """A small GRPO run with a correction."""
    given = {"algorithm": "grpo", "start": "base/tiny", "data": "mine/prompts", "reward_model": "none"}
    rollout = merge(ROLLOUT, rollout)
    given |= {"corpus": "none", "correction": "truncate", "optimizer": {"lr": 5e-3}, "checkpoint_every": 1}  # type: ignore[dict-item]
    params = check(ONLINE["grpo"].model, ONLINE["grpo"].row.merged({**given, "rollout": rollout}), where="grpo")
    text, objective = ChatText(load_tokenizer(folder)), params.objective()
    asked = [[{"role": "user", "content": f"{i}+1"}] for i in range(5)]
    prompts = [Prompt(f"p{i}", one, text.prompt(one), "1") for i, one in enumerate(asked)]
    source = rounds_of(
        prompts, sampler, function_reward(low_tokens), models, objective.needs,
        check(RolloutParams, rollout, where="rollout"), text, name="online@grpo",
    )  # fmt: skip
    update = adamw(models.trained, params, source.steps, models.policy)
    return TrainingRun("online@grpo", params, objective, source, models, update, 0)
