"""What turns hidden states into logits: a matrix, and what some families do around it."""

from __future__ import annotations

import copy
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

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.weight_VD.shape[0]

    def logits(self, hidden_MD: Tensor, temperature: float = 1.0) -> Tensor:
        """z / temperature [M, V], in float32 at least."""
        logits = _wide(hidden_MD @ self.weight_VD.to(hidden_MD.dtype).T)
        if self.bias_V is not None:
            logits = logits + self.bias_V
        return _bent(logits, self.scale, self.cap, temperature)

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

    def copied(self) -> Head:
        """The head as it is now, whatever becomes of the model."""
        return self.mapped(lambda part: part.detach().clone())


@dataclass(frozen=True)
class ModuleHead:
    """The same logits by the head's own forward pass, which may be wrapped by an adapter or by sharding."""

    module: nn.Module
    vocabulary: int
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden_MD: Tensor, temperature: float = 1.0) -> Tensor:
        """z / temperature [M, V], in float32 at least."""
        return _bent(_wide(self.module(hidden_MD)), self.scale, self.cap, temperature)

    def copied(self) -> ModuleHead:
        """The head as it is now, whatever becomes of the model."""
        return replace(self, module=copy.deepcopy(self.module).requires_grad_(requires_grad=False))


AnyHead = Head | ModuleHead


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _bent(logits: Tensor, scale: float, cap: float | None, temperature: float) -> Tensor:
    """What some families do to the product."""
    if scale != 1.0:
        logits = logits * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits if temperature == 1.0 else logits / temperature


def head_of(model: Any) -> Head:
    """The head of a causal language model; the check at load finds one that does more than is known here."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise ModelError(
            what=f"its head is not a matrix ({type(linear).__name__})",
            where=type(model).__name__,
            fix="Use a causal language model whose logits are hidden states times a matrix",
        )
    return Head(linear.weight, linear.bias, *_scale_and_cap(model.config.get_text_config()))


def module_head_of(model: Any) -> ModuleHead:
    """The head of a causal language model, as a module to call."""
    config = model.config.get_text_config()
    return ModuleHead(model.get_output_embeddings(), config.vocab_size, *_scale_and_cap(config))


def _scale_and_cap(config: Any) -> tuple[float, float | None]:
    multiplied, divided = (getattr(config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
    caps = [float(cap) for cap in (getattr(config, name, None) for name in CAPS) if cap]
    return float(multiplied) / float(divided), caps[0] if caps else None
