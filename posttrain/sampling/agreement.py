"""Measure the difference between an engine's log-probs and the model's own log-probs of the same tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

from posttrain.models.device import Runtime
from posttrain.models.forward.forward import score_tokens
from posttrain.rollout import Rollout
from posttrain.text.packing import pack

ROWS: Final = 16
"""The number of samples whose log-probs are computed again."""
WORRYING: Final = {False: 0.01, True: 0.05}
"""The mean gap that is reported, in nats per token; the key is true if the model computes in bf16."""


@torch.no_grad()
def sampler_gap(
    model: Any, rollouts: Sequence[Rollout], temperature: float, runtime: Runtime, where: str
) -> dict[str, float]:
    """Return the mean and largest difference over some samples. Warn if the mean is larger than rounding errors."""
    sampled = [rollout for rollout in rollouts if rollout.logps]
    some = sampled[:: max(len(sampled) // ROWS, 1)][:ROWS]
    if not some:
        return {}
    packed = pack([rollout.row for rollout in some]).to(runtime.device)
    model_logps = score_tokens(model, packed, temperature)[0].double().cpu()
    gap = (model_logps - torch.tensor([logp for rollout in some for logp in rollout.logps], dtype=torch.float64)).abs()
    mean = float(gap.mean())
    if not mean <= WORRYING[runtime.bf16]:
        what = f"the engine's log-probs differ from the model's own by {mean:.3g} nats per token"
        print(f"{where}: {what} (docs/watching.md#sampler-and-trainer-agree)", file=sys.stderr)
    return {"sampler_gap": mean, "sampler_gap_max": float(gap.max())}
