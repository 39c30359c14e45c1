"""Part D: where a round of GRPO goes with the built-in decoder, and what a decoding step costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_parts.figures import Figures, Judge, Result, limit, predicted, shown
from benchmarks.gpu_parts.profiled import profiled_calls
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.timing import elapsed
from benchmarks.speed import ours
from benchmarks.speed.case import prompts
from benchmarks.speed.grpo import BETA
from benchmarks.speed.meter import Meter
from posttrain.measure.phases import CLOCK, NAMES
from posttrain.models.decoder.step import backend_of
from posttrain.sampling.builtin import sample_next

PHASES = {
    "generate": ("generate", 2.3, "decoding is what the round waits for"),
    "train": ("train", 0.57, "as estimated"),
    "reference": ("reference", 0.17, "as estimated"),
}
"""Phase -> key, predicted seconds of a round on an H200, what a hit means."""
REWARD_S = 0.05


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure a round by its phases, then steps of more and more rows."""
    phases = figures.take("a round", partial(_round, sizes), shown)
    if phases:
        for name, (key, seconds, holds) in PHASES.items():
            judge = predicted(key, seconds, holds, "another share of the round than estimated", unit="s")
            figures.take(f"a round, {name}", partial(dict, {key: phases[key]}), judge)
        judge = limit("reward", REWARD_S, "rewards are a cause", "no cause", unit="s")
        figures.take("a round, rewards", partial(dict, {"reward": phases["reward"]}), judge)
    for rows in sizes.decoded:
        figures.take(f"step of {rows} rows", partial(_steps, device, sizes, rows), _step_judge(rows))
    few = sizes.decoded[0]
    first = figures.found(f"step of {few} rows")
    ours_ms = first["step_ms"] if first else 4.4
    judge = limit(
        "step_ms", ours_ms - 0.5, "compiling does not pay", "compiling pays", note=f"not compiled {ours_ms:.3g}"
    )
    figures.take(f"compiled step of {few} rows", partial(_steps, device, sizes, few, compiled=True), judge)


def _step_judge(rows: int) -> Judge:
    if rows == 64:
        return predicted("step_ms", 4.4, "small kernels bound it (bytes need 0.9)", "another bound", unit="ms")
    return limit("tokens_s", 38_000, "above a vLLM server's cap with log-probs", "below it", unit="tokens/s")


class PhaseMeter(Meter):
    """A meter that keeps the seconds of each phase since the first update that counts."""

    def update(self) -> None:
        if self._begun == self.warm:
            self.before = CLOCK.seconds()
        super().update()

    def end(self) -> None:
        super().end()
        self.phases = {name: CLOCK.seconds()[name] - self.before[name] for name in (*NAMES, "other")}


def _round(sizes: Sizes) -> Result:
    meter = PhaseMeter(sizes.grpo.warm, sizes.grpo.device)
    report = ours.online(sizes.grpo, "grpo", {"kl": {"beta": BETA}}, meter=meter)
    return {"completions_s": report.rate, "peak_mb": report.peak_mb, **meter.phases}


def _steps(device: Device, sizes: Sizes, rows: int, *, compiled: bool = False) -> Result:
    """Return prefill, capture and later steps of the built-in decoder, each row sampled from all tokens."""
    policy = _policy(sizes, compiled=compiled)
    with torch.inference_mode():
        return _decoded(policy, device, sizes, rows, compiled=compiled)


def _policy(sizes: Sizes, *, compiled: bool) -> Any:
    case = sizes.grpo
    if case.device == "cuda":
        torch.cuda.empty_cache()
    runtime = ours.device(case, compile_decoding=compiled)
    return ours.models_of(case, runtime, reference=False, lora=False).policy.eval()


def _decoded(policy: Any, device: Device, sizes: Sizes, rows: int, *, compiled: bool) -> Result:
    case = sizes.grpo
    given = prompts(replace(case, batch=rows), max(rows // case.group, 1))
    backend = backend_of(policy, case.longest, sizes.answer, cuda_graphs=True, compiled=compiled)
    joining = [row * len(given) // rows for row in range(rows)]
    prefill = elapsed(lambda: backend.admit([], given, joining), device)
    position_R = torch.tensor([len(given[place]) for place in joining], device=device)
    draw_R = torch.rand(rows, device=device)

    def step() -> None:
        token_R, _ = sample_next(backend.next_logits(), draw_R, 1.0, None)
        backend.append_tokens(token_R, position_R)
        position_R.add_(1)

    capture = elapsed(step, device)
    many = elapsed(step, device, sizes.steps)
    traced = profiled_calls(step, device, sizes.replays)
    rates = {"step_ms": many, "tokens_s": rows / many * 1e3}
    return {"prefill_ms": prefill, "capture_ms": capture, **rates, "traced": traced}
