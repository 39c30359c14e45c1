"""Part C: the same steps with one thing changed, all in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import getsource

from benchmarks.gpu_parts.figures import Figures, MissingError, Result, limit, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.training import Job, compiler, switched, tile_bytes, timed
from benchmarks.speed import ours
from posttrain.models.forward.forward import PackedAttention

BASE, AS_IT_IS = "base", "this version as it is"
STEP_MS = 245.9
"""Of sft/Q on an H200."""
COMPILED = ours.TRAINING.model_copy(update={"compile": True})
DPO_FREE = limit(
    "speed", 1.05, "verdict 1 falls: short rows gain too", "verdict 1 holds: short rows gain little",
    unit="times the base's speed", note="predicted 1.02, refuted by 1.09",
)  # fmt: skip
Changed = AbstractContextManager[None]
Variant = tuple[Callable[[], Changed], Job, float, str]
"""What is changed, what is trained, the predicted speed as a multiple of the base's, and what a miss means."""


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure the base, then each variant as a multiple of its speed. What compiles comes last, since it takes long."""
    del device
    base = figures.take(BASE, partial(_measured, switched, Job(sizes.sft)))
    if base:
        judge = limit("speed", 1.05, "faster than what was measured before", "no faster", unit="times the base's speed")
        figures.take(AS_IT_IS, partial(_as_it_is, base, Job(sizes.sft)), judge)
    dpo = figures.take("dpo base", partial(_measured, switched, Job(sizes.dpo, pairs=True)))
    free = "determinism does not cost what the model of attention says"
    if base:
        _compare(figures, "free", base, (switched, Job(sizes.sft, deterministic=False), 1.10, free))
    if dpo:
        job = Job(sizes.dpo, pairs=True, deterministic=False)
        figures.take("dpo free", partial(_relative, dpo, switched, job), DPO_FREE)
    for name in ("squeeze", "qkv as one matrix", "compiled, static"):
        figures.take(name, partial(_no_switch, name))
    for name, variant in _variants(sizes).items() if base else ():
        _compare(figures, name, base or {}, variant)


def _variants(sizes: Sizes) -> dict[str, Variant]:
    """Return name -> variant. A predicted speed is the base's time over the time that the estimate leaves."""
    sft = Job(sizes.sft)
    compiled = replace(sft, training=COMPILED)
    return {
        "cut": (partial(switched, "cut"), sft, _after(14), "the schedule of attention's blocks is another"),
        "fused layers": (partial(switched, "fused"), sft, _after(40), "norms are not what takes the time"),
        "tiles of 2 GiB": (partial(tile_bytes, 2 * 2**30), sft, _after(5), "the number of tiles does not matter"),
        "newest attention": (partial(switched, "newest attention"), sft, _after(38), "attention costs less than said"),
        "both": (partial(switched, "fused", "newest attention"), sft, _after(78), "the two overlap"),
        "compiled": (switched, compiled, 1.07, "the compiler replaces other kernels than before"),
        "compiled, not deterministic": (
            partial(compiler, deterministic=False), compiled, 1.07, "the option `deterministic` costs speed"
        ),
    }  # fmt: skip


def _after(saved_ms: float) -> float:
    return STEP_MS / (STEP_MS - saved_ms)


def _compare(figures: Figures, name: str, base: Result, variant: Variant) -> None:
    change, job, speed, miss = variant
    judge = predicted("speed", speed, "as predicted", miss, unit="times the base's speed", within=0.05)
    figures.take(name, partial(_relative, base, change, job), judge)


def _relative(base: Result, change: Callable[[], Changed], job: Job) -> Result:
    found = _measured(change, job)
    return {**found, "speed": base["ms"] / found["ms"]}


def _measured(change: Callable[[], Changed], job: Job) -> Result:
    others = nullcontext() if change is switched or getattr(change, "func", None) is switched else switched()
    with others, change():
        return timed(job)


def _as_it_is(base: Result, job: Job) -> Result:
    """Return the step of a user, with what the library chooses here."""
    found = timed(job)
    return {**found, "speed": base["ms"] / found["ms"]}


def _no_switch(name: str) -> Result:
    if name == "squeeze" and "squeeze(0)" in getsource(PackedAttention.attend):
        raise MissingError("part of this version, base included: there is no switch to be without it")
    raise MissingError("not in this version")
