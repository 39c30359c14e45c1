"""The KL of a policy to a reference on the policy's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.forward.forward import score_tokens
from posttrain.rollout import TokenRow
from posttrain.text.packing import micro_batches, pack


@phase("reference")
@torch.no_grad()
def kl_to_reference(
    model: Any, reference: Any, rows: Sequence[tuple[TokenRow, TokenRow]], temperature: float, runtime: Runtime
) -> dict[str, float]:
    """Return KL(policy || reference) per completion from the policy's samples: the mean over rows of summed k1 and k3.

    rows: for each sample, the row for the policy and the row for the reference. They differ only by `context`.
    """
    k1, k3 = torch.zeros(2, dtype=torch.float64, device=runtime.device)
    for micro_batch in micro_batches([len(row) for row, _ in rows], list(range(len(rows))), 16_384):
        packed, plain = (pack(part).to(runtime.device) for part in zip(*(rows[i] for i in micro_batch), strict=True))
        policy_logp, _ = score_tokens(model, packed, temperature)
        reference_logp, _ = score_tokens(reference, plain, temperature)
        log_ratio = (reference_logp - policy_logp).double()
        k1, k3 = k1 - log_ratio.sum(), k3 + (log_ratio.expm1() - log_ratio).sum()
    return {"kl_k1": float(k1) / len(rows), "kl_k3": float(k3) / len(rows)}
