"""The head's softmax in one kernel, for losses whose gradient is only through `logp`.

    u_v = p_v - 1[v = target]     nll = -logp      one kernel: it reads a token's logits z, and writes u in their place
    m   = u W                                      a product that the gradient needs anyway
    H   = nll - f h . m                            the entropy, as sum p z = z_target + u . z, and z = f h W^T

f is the head's scale divided by the temperature. A loss with slope c in `logp` scales rows afterwards: the gradient is
-c f m for the hidden states h, and u^T (-c f h) for the matrix W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.models.forward import kernels
from posttrain.models.forward.logp import (
    OUTSIDE,
    Head,
    HeadGradient,
    add_product_,
    check_shapes,
    outside,
    product_in_float32,
    tiles_of,
)
from posttrain.rollout import Kept


def takes(head: Head, hidden_MD: Tensor) -> bool:
    """Tell whether this head's logits are a scaled product, and the kernel runs here."""
    return head.cap is None and head.bias_V is None and kernels.runs(hidden_MD)


@dataclass(frozen=True)
class UnitTile:
    """A tile of scored tokens, with the gradients of -logp in memory, for losses that are sums over tokens."""

    part: slice
    """The slice of the scored tokens."""
    logp: Tensor
    """A leaf, like `entropy`. Compute the loss from both and pass it to `backward`."""
    entropy: Tensor
    """For metrics. A loss may not have a gradient through it."""
    _unit: Tensor
    _mean: Tensor
    _hidden: Tensor
    _factor: float
    _grad_head: HeadGradient

    @torch.no_grad()
    def backward(self, loss: Tensor) -> Tensor:
        """Add the loss's gradient to the head's `.grad`. Return the gradient for the tokens' hidden states."""
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, (self.logp, self.entropy), allow_unused=True)
        slope, of_entropy = grads
        if of_entropy is not None:
            raise ValueError("the loss has a gradient through `entropy`, but the objective declares none")
        slope = torch.zeros_like(self.logp) if slope is None else slope
        scale = (slope * -self._factor)[:, None]
        if self._grad_head.weight_VD is not None:
            add_product_(self._grad_head.weight_VD, self._unit.T, (self._hidden * scale).to(self._hidden.dtype))
        return (self._mean * scale).to(self._hidden.dtype)


def unit_tiles(
    hidden_MD: Tensor, head: Head, target_M: Tensor, temperature: float = 1.0, kept: Kept | None = None
) -> Iterator[UnitTile]:
    """Yield the scored tokens tile by tile, as `loss_tiles` does."""
    check_shapes(hidden_MD, head, target_M)
    grad_head, factor = HeadGradient.of(head), head.scale / temperature
    head = head.for_products(hidden_MD.dtype)
    for part in tiles_of(target_M, head.vocabulary):
        hidden = hidden_MD[part]
        with torch.no_grad():
            logits = head.logits(hidden, temperature)
            if kept is not None:
                logits.masked_fill_(outside(kept.part(part), logits), OUTSIDE)
            nll = kernels.nll_(logits, target_M[part])
            unit = logits.to(hidden.dtype)
            mean = product_in_float32(unit, head.weight_VD)
            entropy = nll - factor * torch.linalg.vecdot(hidden.to(mean.dtype), mean)
        yield UnitTile(part, (-nll).requires_grad_(), entropy.requires_grad_(), unit, mean, hidden, factor, grad_head)
