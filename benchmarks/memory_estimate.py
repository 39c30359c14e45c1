"""The memory estimate at the sizes of real models, next to the bytes of all tensors of a training step.

python -m benchmarks.memory_estimate              measures and writes its table into reports/memory.md (16 GB of memory)
python -m benchmarks.memory_estimate SHAPE RUN    one of them, as JSON
python -m benchmarks.memory_estimate cuda         all of them on a GPU, next to the most that torch's allocator gave out

Weights are random, embedding and head one matrix. The 8B shape has 4 of its 36 layers, which are all alike, so that it
fits a small machine; a GPU has all of them.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks import RESULTS, ROOT
from benchmarks.machine import machine, versions
from benchmarks.speed.case import SHAPES, Shape, language_model
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.files import write_json, write_text
from posttrain.models.adapters import LoraOptions, share_tensors
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import prepared
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.lora import add, freeze
from posttrain.models.master_weights import master_of
from posttrain.rollout import token_rows
from posttrain.train.estimate import training_parts
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import Batch, StepClosure, make_batch
from tests.pipeline.train.live import LiveBytes

KEPT = RESULTS / "memory-estimate.json"
KEPT_GPU = RESULTS / "memory-estimate-gpu.json"
PAGE = ROOT / "docs/reports/memory.md"
TABLE, TABLE_GPU = "estimate", "estimate-gpu"
"""What marks each table in the page."""
GB = 1e9
ROWS = 4


@dataclass(frozen=True)
class Run:
    """What is trained, and how."""

    objective: Literal["sft", "dpo"]
    precision: Literal["fp32", "bf16"]
    activations: Activations
    adapter: Literal["none", "lora", "qlora"] = "none"


RUNS = {
    "SFT": Run("sft", "fp32", "keep"),
    "SFT, bf16, recompute": Run("sft", "bf16", "recompute"),
    "DPO, bf16": Run("dpo", "bf16", "keep"),
    "SFT, LoRA, bf16": Run("sft", "bf16", "keep", "lora"),
    "DPO, LoRA, bf16, recompute": Run("dpo", "bf16", "recompute", "lora"),
    "SFT, QLoRA, bf16, recompute": Run("sft", "bf16", "recompute", "qlora"),
}
PART_OF_8B, ALL_OF_8B = "Qwen3-8B, 4 layers", "Qwen3-8B"
MODELS: dict[str, tuple[Shape, int]] = {
    "SmolLM2-135M": (Shape("SmolLM2", 30, 576, 9, 1536, 49_152, kv_heads=3), 2048),
    "Qwen3-0.6B": (SHAPES["Q"], 1024),
    PART_OF_8B: (replace(SHAPES["8B"], layers=4), 2048),
}
"""Shapes, and the tokens of a step."""
GPU_MODELS = MODELS | {"Qwen3-0.6B": (SHAPES["Q"], 16_384), ALL_OF_8B: (SHAPES["8B"], 8192)}
GPU_MODELS.pop(PART_OF_8B)
CASES = [(model, run) for model in MODELS for run, one in RUNS.items() if one.adapter != "none" or model != PART_OF_8B]
"""All weights of the 8B shape do not fit a small machine."""
GPU_CASES = [
    (model, run) for model in GPU_MODELS for run, one in RUNS.items() if one.adapter != "none" or model != ALL_OF_8B
]


@dataclass(frozen=True)
class Sizes:
    """Bytes of a step, as estimated and as its tensors take them; `weights` are estimated exactly."""

    estimated: float
    measured: float
    weights: float

    @property
    def ratio(self) -> float:
        """The estimate over the measured size."""
        return self.estimated / self.measured

    @property
    def ratio_beyond_weights(self) -> float:
        """The same of gradients, moments, activations and the head."""
        return (self.estimated - self.weights) / (self.measured - self.weights)


def measure(
    shape: Shape, tokens: int, run: Run, device: Literal["cpu", "cuda"] = "cpu", threads: int | None = None
) -> Sizes:
    """Of an optimizer step whose moments are there already; `threads`: by default one for each core."""
    threads = threads or os.cpu_count() or 1
    runtime = Runtime(DeviceParams(device=device, precision=run.precision, threads=threads))
    models = ModelSet(runtime=runtime, micro_tokens=tokens, **_models(shape, run, device))
    set_activations(models.policy.train(), run.activations)
    parts = training_parts(models, tokens, run.activations)
    there = [part for model in (models.policy, models.reference) if model for part in _tensors(model)]
    update = AdamW({"policy": (models.policy, 1e-5)}, OptimizerParams(), 4)
    weights = parts["weights"] + parts.get("masters", 0.0)
    if device == "cuda":
        update.step(_closure(run, models, ROWS * 8), 0.0)
        torch.cuda.reset_peak_memory_stats()
        update.step(_closure(run, models, tokens), 0.0)
        return Sizes(sum(parts.values()), float(torch.cuda.max_memory_allocated()), weights)
    with LiveBytes([*there, *map(master_of, there)]) as live:
        update.step(_closure(run, models, ROWS * 8), 0.0)
        live.most = live.now
        update.step(_closure(run, models, tokens), 0.0)
    return Sizes(sum(parts.values()), float(live.most), weights)


def _models(shape: Shape, run: Run, device: str) -> dict[str, Any]:
    model = prepared(language_model(shape, device))
    if run.adapter == "none":
        reference = {"reference": prepared(language_model(shape, device))} if run.objective == "dpo" else {}
        return {"policy": model, **reference}
    options = LoraOptions(type=run.adapter)
    freeze(model, options)
    reference = {"reference": share_tensors(model)} if run.objective == "dpo" else {}
    return {"policy": add(model, options, Path(), 0), **reference}


def _tensors(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _closure(run: Run, models: ModelSet, tokens: int) -> StepClosure:
    objective: Objective = LikelihoodObjective(LikelihoodConfig())
    if run.objective == "dpo":
        objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
    batch = _batch(objective, tokens)
    prepared_step = objective.prepare(batch.columns, objective.initial_state()).step
    return StepClosure(objective, models, batch.with_prepared(prepared_step))


def _batch(objective: Objective, tokens: int) -> Batch:
    """Rows of random ids, the first token of each its prompt."""
    length = tokens // ROWS
    rows = token_rows([[1]] * ROWS, torch.randint(2, 100, (ROWS, length - 1)).tolist())
    columns = {"side": torch.tensor([1.0, -1.0] * (ROWS // 2)), "margin": torch.zeros(ROWS)}
    known = {"ref_logp": torch.full((ROWS * (length - 1),), -1.0)}
    pairs = torch.arange(ROWS) // 2 if "side" in objective.needs else None
    return make_batch(rows, columns, known, pairs)


def table(found: dict[str, Sizes]) -> str:
    """Return a line for each case."""
    lines = ["| shape | run | estimate | measured | ratio | beyond weights |", "|---|---|---:|---:|---:|---:|"]
    for name, one in found.items():
        model, _, run = name.partition(": ")
        sizes = f"{one.estimated / GB:.2f} GB | {one.measured / GB:.2f} GB"
        lines.append(f"| {model} | {run} | {sizes} | {one.ratio:.3f} | {one.ratio_beyond_weights:.3f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure every case that has no result yet, each in its own process, and write the page."""
    if arguments == ["cuda"]:
        _on_gpu()
        return 0
    if arguments:
        model, run = arguments
        print(json.dumps(vars(measure(*MODELS[model], RUNS[run]))))
        return 0
    kept: dict[str, dict[str, float]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    for model, run in CASES:
        if (name := f"{model}: {run}") in kept:
            continue
        command = [sys.executable, "-m", "benchmarks.memory_estimate", model, run]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
        kept[name] = json.loads(done.stdout.splitlines()[-1])
        write_json(KEPT, kept)
        print(f"{name}: {Sizes(**kept[name]).ratio:.3f}", flush=True)
    shown = table({name: Sizes(**kept[name]) for name in (f"{model}: {run}" for model, run in CASES)})
    _write(TABLE, shown, f"{_tokens(MODELS)} `python -m benchmarks.memory_estimate`, {machine()}.")
    return 0


def _on_gpu() -> None:
    """Measure all cases in this process, and write their table."""
    found = {}
    for model, run in GPU_CASES:
        found[f"{model}: {run}"] = measure(*GPU_MODELS[model], RUNS[run], "cuda")
        print(f"{model}: {run}: {found[f'{model}: {run}']}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    used = f"{torch.cuda.get_device_name()}, {versions('torch', 'transformers')}"
    write_json(KEPT_GPU, {"machine": used, "sizes": {name: vars(one) for name, one in found.items()}})
    write_gpu_table()


def write_gpu_table() -> None:
    """Write what was measured on a GPU into the page."""
    kept = json.loads(KEPT_GPU.read_text(encoding="utf-8"))
    shown = table({name: Sizes(**one) for name, one in kept["sizes"].items()})
    _write(TABLE_GPU, shown, f"{_tokens(GPU_MODELS)} `python -m benchmarks.memory_estimate cuda`, {kept['machine']}.")


def _tokens(models: dict[str, tuple[Shape, int]]) -> str:
    tokens = ", ".join(f"{model.partition(',')[0]} {count:,}" for model, (_, count) in models.items())
    return f"Tokens of the step: {tokens}; rank 32."


def _write(mark: str, shown: str, note: str) -> None:
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    write_text(PAGE, f"{before}{begin}\n{shown}\n\n{note}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
