"""How often the host waits for the second device: numbers, in a mode that sees every wait."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.master_weights import MASTER, frozen_on
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from tests.library.models.tiny import random_rows, sample, tiny_folder, tiny_model
from tests.pipeline.train.test_transfers import problem
from tests.second_device.device import waits

CHECK_EVERY = 8
"""Decoding steps from one look at which rows have ended to the next."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def runtime() -> Runtime:
    return Runtime(DeviceParams(device="cuda"))


def settings(kind: str) -> TrainingParams:
    return TrainingParams.model_validate({"adapter": {"type": kind} if kind == "none" else {"type": kind, "rank": 2}})


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "ppo"])
@pytest.mark.parametrize(("rows", "micro_tokens"), [(8, 10**6), (32, 64)])
def test_an_update_waits_once(name: str, rows: int, micro_tokens: int, folder: Path) -> None:
    """For the metrics and the gradient's norm in one piece; micro-batches are sent without a wait."""
    step = problem(folder, name, rows, micro_tokens)
    update = AdamW({kind: (model, 1e-3) for kind, model in step.models.trained.items()}, OptimizerParams(), 10)
    with waits() as found:
        update.step(step, 0.0)
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["none", "lora", "dora", "qlora"])
def test_loading_waits_once_for_each_tensor_that_is_sent(kind: str, folder: Path) -> None:
    with waits() as found:
        models = ModelSet.load(runtime(), folder, frozenset({"ref_logp"}), settings(kind))
    assert 0 < len(found) <= sum(1 for _ in kept(models.policy, models.reference))


def kept(*models: Any) -> Iterator[Any]:
    """The tensors of models on the device, masters too."""
    for model in models:
        yield from chain(model.parameters(), model.buffers())
        yield from (part for part in model.parameters() if hasattr(part, MASTER))


def test_decoded_tokens_of_all_rows_cost_one_wait_in_eight() -> None:
    device = runtime()
    model, prompts = frozen_on(tiny_model(), device), random_rows(6, seed=1)[0]

    def count(tokens: int) -> int:
        params = SamplingParams(max_tokens=tokens, rows=18)
        with waits() as found:
            sample(model, prompts, [*"abcdef"], n=3, params=params, seed=2, stop=Stops((), str), device=device)
        return len(found)

    assert count(80) - count(16) == (80 - 16) / CHECK_EVERY
