"""Every objective takes the same steps on the second device as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.marks import slow_except
from tests.pipeline.processes.every_objective import MIXTURES, names, run

STEPS = 2
QUICK = {
    ("float32", name)
    for name in (
        "likelihood",
        "dpo",
        "kto",
        "grpo",
        "gspo",
        "ppo",
        "ppo_penalty, exact",
        "nash_md",
        "reward",
        *MIXTURES,
    )
}
GAPS = {"float32": 3e-5, "bfloat16": 2e-2}
"""Of a loss, relative where it is above 1. In bf16 the device has FlashAttention, the CPU whole rows."""
CHOOSES = ("clip_cov", "top_entropy")
"""They choose tokens by covariance or entropy, which rounding to bf16 may order in another way."""
CASES = [(dtype, name) for dtype in GAPS for name in names() if dtype == "float32" or not name.startswith(CHOOSES)]


@pytest.mark.parametrize("case", slow_except(QUICK, CASES), ids=", ".join)
def test_losses_are_those_of_the_cpu(case: tuple[str, str]) -> None:
    dtype, name = case
    on_cpu, on_device = (losses(name, dtype, device) for device in ("cpu", "cuda"))
    assert len(on_cpu) == STEPS
    for expected, found in zip(on_cpu, on_device, strict=True):
        assert abs(found - expected) <= GAPS[dtype] * max(1.0, abs(expected))


def losses(name: str, dtype: str, device: Any) -> list[float]:
    _, metrics = run(name, getattr(torch, dtype), None, device, STEPS)
    return [one["loss"] for one in metrics]
