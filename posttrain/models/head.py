"""What turns hidden states into logits: a matrix, and what some families do around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.errors import ModelError

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""What configs call a soft cap of the logits."""


@dataclass(frozen=True)
class Head:
    """z = cap tanh(scale (h W^T + b) / cap); most families have the matrix alone."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden_MD: Tensor, temperature: float = 1.0) -> Tensor:
        """z / temperature [M, V], in float32 at least."""
        logits = hidden_MD @ self.weight_VD.to(hidden_MD.dtype).T
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.bias_V is not None:
            logits = logits + self.bias_V
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return logits if temperature == 1.0 else logits / temperature

    def through_(self, slope_MV: Tensor, logits_MV: Tensor, temperature: float) -> Tensor:
        """From the gradient by z / temperature to that by h W^T + b, in place."""
        if self.cap is not None:
            slope_MV.mul_(1 - (logits_MV * (temperature / self.cap)).square())
        if self.scale != 1.0:
            slope_MV.mul_(self.scale)
        return slope_MV if temperature == 1.0 else slope_MV.div_(temperature)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Head:
        """The same head with other tensors: detached, copied, in another precision."""
        return replace(
            self, weight_VD=change(self.weight_VD), bias_V=None if self.bias_V is None else change(self.bias_V)
        )


def head_of(model: Any) -> Head:
    """The head of a causal language model; the check at load finds one that does more than is known here."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise ModelError(
            what=f"its head is not a matrix ({type(linear).__name__})",
            where=type(model).__name__,
            fix="Use a causal language model whose logits are hidden states times a matrix",
        )
    config = model.config.get_text_config()
    multiplied, divided = (getattr(config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
    caps = [float(cap) for cap in (getattr(config, name, None) for name in CAPS) if cap]
    return Head(linear.weight, linear.bias, float(multiplied) / float(divided), caps[0] if caps else None)
