"""Training steps of a case for the parts that measure steps, and switches for what the library chooses by itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_parts.figures import MissingError, Result
from benchmarks.speed import ours
from benchmarks.speed.case import STOP, Case, Row, batches
from benchmarks.speed.gpu import H100_PEAK, flops
from benchmarks.speed.meter import Meter, peak_mb
from benchmarks.speed.reward import SIDE
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.measure.record import noted
from posttrain.models.forward import compiled, flash, kernels, layers, logp, varlen
from posttrain.train.loop import TrainingParams
from posttrain.train.metrics import MetricsLog

Updates = Sequence[Sequence[Sequence[Row]]]
SWITCHES = ("fused", "newest attention", "cut")
"""Layers of few kernels, another FlashAttention, and attention's long rows in calls of their own."""
FIRST_TILE = 512 * 2**20
"""Bytes of a tile of the head when the steps were measured."""


@dataclass(frozen=True)
class Job:
    """What is trained, and how."""

    case: Case
    pairs: bool = False
    lora: bool = False
    deterministic: bool = True
    training: TrainingParams = ours.TRAINING
    rows: tuple[int, ...] | None = None
    """The rows of each step, in place of the case's."""

    def updates(self) -> Updates:
        """Return the rows of each step."""
        if self.rows is None:
            return batches(self.case, 1 + self.pairs)
        return [[[_row(length)] for length in self.rows]] * (self.case.warm + self.case.updates)


def _row(length: int) -> Row:
    prompt = length // 3
    return Row([2] * prompt, [3] * (length - prompt - 1) + [STOP])


def train(job: Job, meter: Meter) -> MetricsLog:
    """Train a new model on the job's rows as a stage does. `meter` is told when updates begin and when all are done."""
    torch.use_deterministic_algorithms(mode=False)  # a job before this one may have asked for it
    _release()
    runtime = ours.device(job.case, deterministic=job.deterministic)
    models = ours.models_of(job.case, runtime, reference=job.pairs, lora=job.lora)
    if job.pairs:
        objective: Any = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings(loss={"beta": 0.1}))
        source = ours.Given(job.updates(), SIDE)
    else:
        objective, source = LikelihoodObjective(LikelihoodConfig()), ours.Given(job.updates(), {})
    return ours.fit(objective, source, models, meter, job.training)


def timed(job: Job) -> Result:
    """Return the time of a step, tokens a second, the share of the peak and the memory."""
    case = job.case
    meter = Meter(case.warm, case.device)
    log = train(job, meter)
    counted = [row for items in job.updates()[case.warm :] for item in items for row in item]
    work = flops(case.shape, counted)
    total = (work.lora_step if job.lora else work.step) + (work.forward if job.pairs else 0)
    seconds = max(meter.report(0, []).seconds, 1e-9)
    return {
        "ms": seconds / case.updates * 1e3,
        "tokens_s": sum(len(row) for row in counted) / seconds,
        "share_of_peak": total / seconds / (H100_PEAK * 1e12),
        "peak_mb": peak_mb(case.device),
        "loss": log.rows[-1]["loss"],
    }


def _release() -> None:
    """Give back what the job before kept."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def switched(*on: str) -> Iterator[None]:
    """Train with these of the library's faster ways, and without the others. Raise for one that does not run here."""
    if "fused" in on and kernels.liger() is None:
        raise MissingError("liger-kernel is not installed: pip install liger-kernel")
    with ExitStack() as stack:
        stack.enter_context(tile_bytes(FIRST_TILE))
        for name in (name for name in SWITCHES if name not in on):
            stack.enter_context(_replaced(*OFF[name]))
        flash.newest.cache_clear()  # which attention runs is chosen anew
        stack.callback(flash.newest.cache_clear)
        yield
        _check_ran(on)


OFF: dict[str, tuple[Any, str, Any]] = {
    "fused": (kernels, "liger", lambda: None),
    "newest attention": (flash, "NAMES", {}),
    "cut": (varlen, "split_of", lambda *_: None),
}
"""Switch -> what the library's module has in place of its own to be without it."""


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _check_ran(on: Sequence[str]) -> None:
    """Raise if the library took its usual way, which it does where it cannot use a package."""
    if "newest attention" in on and noted("attention") in (None, flash.OWN):
        raise MissingError("neither FlashAttention 4 nor 3 runs here: pip install flash-attn-4")
    if "fused" in on and noted("layers") != layers.FUSED:
        raise MissingError("the library did not fuse the layers of this model here")


def tile_bytes(size: int) -> AbstractContextManager[None]:
    """Compute the head in tiles of this size on a GPU."""
    return _replaced(logp, "gpu_tile_bytes", lambda _: size)


def compiler(**options: bool) -> AbstractContextManager[None]:
    """Change options of torch's compiler."""
    return _replaced(compiled, "OPTIONS", {**compiled.OPTIONS, **options})
