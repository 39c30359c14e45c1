"""Adapters, and what is kept for the backward pass: trained, sampled from, saved and loaded on the second device."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, save_model
from posttrain.models.forward.activations import Activations
from posttrain.models.forward.forward import score_tokens
from posttrain.models.master_weights import computing
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.loop import TrainingParams
from tests.library.models.tiny import random_rows, sample, tiny_folder
from tests.marks import slow_except
from tests.pipeline.train.test_training import digest, make_run, train

ADAPTERS, OBJECTIVES, PRECISIONS = ("none", "lora", "dora", "qlora"), ("sft", "dpo", "grpo"), ("fp32", "bf16")
QUICK = {("none", "grpo", "bf16"), ("lora", "grpo", "fp32"), ("qlora", "sft", "fp32"), ("qlora", "dpo", "bf16")}
LOSS_GAP = 1e-4
"""In float32, of a loss, relative where it is above 1."""
LOGP_GAP = {"fp32": 1e-4, "bf16": 0.1}
ROWS = token_rows(*random_rows(6))


class Trained:
    """A small run with the losses of its steps."""

    def __init__(self, case: tuple[str, str, Any], device: Any, activations: Activations, place: Path) -> None:
        adapter, name, precision = case
        self.runtime = Runtime(DeviceParams(device=device, precision=precision))
        self.folder = tiny_folder(place / "tiny")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.pipeline.train.test_training.DEVICE", self.runtime)
            patch.setenv("DVC_ROOT", str(place))
            run = make_run(self.folder, name if adapter == "none" else f"{name}+{adapter}", place)
            train(replace(run, params=TrainingParams(activations=activations)), place)
        self.policy, self.digest = run.models.policy.eval(), digest(run)
        with (place / f"{run.name}.csv").open(encoding="utf-8") as file:
            self.losses = [float(row["loss"]) for row in csv.DictReader(file)]

    def logps(self) -> Tensor:
        """The trained policy's, where and as it was trained."""
        with torch.no_grad():
            return score_tokens(self.policy, pack(ROWS).to(self.runtime.device))[0].float().cpu()


@pytest.mark.parametrize("case", slow_except(QUICK, itertools.product(ADAPTERS, OBJECTIVES, PRECISIONS)), ids="-".join)
def test_what_is_trained_on_the_device_is_what_a_cpu_trains_and_loads(
    case: tuple[str, str, Any], tmp_path: Path
) -> None:
    runs = [Trained(case, "cuda", activations, tmp_path / activations) for activations in get_args(Activations)]
    assert len({run.digest for run in runs}) == 1, "what is kept decides the memory and nothing else"
    run, precision = runs[0], case[2]
    if precision == "fp32":
        on_cpu = Trained(case, "cpu", "keep", tmp_path / "cpu")
        for expected, found in zip(on_cpu.losses, run.losses, strict=True):
            assert abs(found - expected) <= LOSS_GAP * max(1.0, abs(expected))
    params = SamplingParams(max_tokens=8, rows=6)
    prompts = [row.prompt for row in ROWS]
    drawn = sample(
        run.policy, prompts, [*"abcdef"], n=1, params=params, seed=0, stop=Stops((), str), device=run.runtime
    )
    assert all(len(ids) == 8 for ids in drawn.ids)
    save_model(run.policy, tmp_path / "saved", run.folder)
    loaded, host = load_policy(tmp_path / "saved"), Runtime(DeviceParams(device="cpu", precision=precision))
    with torch.no_grad(), computing(loaded, host):
        again = score_tokens(loaded, pack(ROWS))[0].float()
    assert float((again - run.logps()).abs().max()) <= LOGP_GAP[precision]
