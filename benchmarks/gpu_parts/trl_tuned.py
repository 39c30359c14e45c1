"""Part G: SFT by TRL near its defaults, tuned, and tuned with packing, next to posttrain's speed in part C.

Liger replaces functions of transformers in the whole process, and posttrain asks torch for deterministic kernels. So
TRL near its defaults comes first, and posttrain does not run here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.gpu_parts.figures import Figures, MissingError, Result, limit, shown
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.gpu_parts.variants import AS_IT_IS
from benchmarks.speed import theirs
from benchmarks.speed.case import Case
from benchmarks.speed.gpu import TITLES
from benchmarks.speed.sft import SIDES

MEASURED = 3.24
"""Posttrain's speed over default TRL's on an H200."""


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Measure TRL's sides, then posttrain's speed over theirs."""
    del device
    case = replace(sizes.sft, warm=1, updates=min(sizes.sft.updates, 3))
    ours = figures.found(AS_IT_IS, "C")
    for side in ("trl_padded", "trl", "trl_packing"):
        title = TITLES[side]
        found = figures.take(title, partial(_side, side, case), shown)
        judge = limit(
            "ratio", 1.0, f"posttrain is faster than {title}", f"posttrain is slower than {title}",
            unit="times its speed", note=f"default TRL was {MEASURED}",
        )  # fmt: skip
        if found:
            figures.take(f"posttrain / {title}", partial(_ratio, ours, found), judge)


def _side(side: str, case: Case) -> Result:
    try:
        theirs.require()
    except SystemExit as error:
        raise MissingError(str(error)) from error
    report = SIDES[side](case)
    return {"tokens_s": report.rate, "peak_mb": report.peak_mb, **report.seen}


def _ratio(ours: Result | None, found: Result) -> Result:
    if ours is None:
        raise MissingError(f"posttrain's speed is '{AS_IT_IS}' of part C, which is not in the file: run part C first")
    return {"ratio": ours["tokens_s"] / found["tokens_s"]}
