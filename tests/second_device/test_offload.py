"""Activations in the host's memory: sent and fetched once, without a wait, one layer ahead, with the same gradient."""

from __future__ import annotations

import gc
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.forward import packed_states
from posttrain.models.scratch import ScratchParams, scratch_config
from posttrain.rollout import token_rows
from posttrain.text.packing import pack
from tests.second_device.device import calls, waits

LAYERS, WIDTH, TOKENS = 6, 64, 600
CUDA = torch.device("cuda")


class Passes:
    """A forward and a backward pass: its gradients, waits and copies, and the memory of its fullest moments."""

    def __init__(self, activations: Activations) -> None:
        Runtime(DeviceParams(device="cuda", precision="fp32"))
        config = scratch_config(ScratchParams(width=WIDTH, heads=4, layers=LAYERS), 97, stop=2, pad=0)
        model, packed = new_model(config, 0).to(CUDA).train(), pack(token_rows([[1]], [[2] * (TOKENS - 1)])).to(CUDA)
        set_activations(model, activations)
        packed_states(model, packed).square().sum().backward()  # type: ignore[no-untyped-call]  # now there are gradients
        gc.collect()
        with waits() as self.waits, calls() as self.copies:
            before = torch.cuda.memory_allocated()
            states = packed_states(model, packed)
            self.kept = torch.cuda.memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
            states.square().sum().backward()  # type: ignore[no-untyped-call]
            self.most = torch.cuda.max_memory_allocated() - before
        self.gradients: list[Tensor] = [part.grad for part in model.parameters()]

    def copied(self, where: Any) -> int:
        return self.copies.get(f"copy_ to {where}", 0)


@pytest.fixture(scope="module")
def passes() -> dict[Activations, Passes]:
    return {name: Passes(name) for name in get_args(Activations)[1:]}


def test_each_layer_is_sent_and_fetched_once_without_a_wait(passes: dict[Activations, Passes]) -> None:
    there, away = passes["recompute"], passes["offload"]
    assert [away.copied(where) - there.copied(where) for where in ("host", "device")] == [LAYERS, LAYERS]
    assert away.waits == there.waits
    assert all(torch.equal(one, other) for one, other in zip(there.gradients, away.gradients, strict=True))


def test_the_device_holds_two_inputs_at_most(passes: dict[Activations, Passes]) -> None:
    size = 4 * WIDTH * TOKENS
    saved = passes["recompute"].kept - passes["offload"].kept
    assert saved >= (LAYERS - 1) * size, "the forward pass leaves the inputs on the device"
    assert passes["recompute"].most - passes["offload"].most >= (LAYERS - 3) * size
