"""Log-probs and entropies of given tokens from hidden states, without ever holding all logits.

    logp_m = z_m[target_m] - logsumexp(z_m),   H_m = logsumexp(z_m) - sum_v p_mv z_mv,   z = h W^T / temperature

Both passes go through the vocabulary in tiles of scored tokens; the backward makes the logits anew, so the memory
does not grow with the number of tokens times the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 16 * 2**20
TILE_TOKENS = 64
"""No fewer tokens than this share a tile, however large the vocabulary: the weight's gradient is gone through once a
tile."""


TokenLoss = Callable[[slice, Tensor, Tensor], Tensor]
"""(which tokens, their log-probs, their entropies) -> the sum of their losses."""


@dataclass(frozen=True)
class _Tile:
    """The distributions of some tokens."""

    logits: Tensor
    p: Tensor
    logz: Tensor
    target: Tensor

    def logp(self) -> Tensor:
        """z[target] - log sum exp z."""
        return self.logits.gather(1, self.target[:, None]).squeeze(1) - self.logz

    def entropy(self) -> Tensor:
        """log sum exp z - sum p z."""
        mean: Tensor = torch.linalg.vecdot(self.p, self.logits)
        return self.logz - mean

    def slope_(self, grad_logp: Tensor, grad_entropy: Tensor | None, entropy: Tensor) -> Tensor:
        """The gradient by the logits, g (1[target] - p) - g_H p (log p + H), in place of p."""
        scale = -grad_logp[:, None]
        if grad_entropy is not None:
            scale = scale - grad_entropy[:, None] * (self.logits - (self.logz - entropy)[:, None])
        return self.p.mul_(scale).scatter_add_(1, self.target[:, None], grad_logp[:, None])


def _tile(hidden: Tensor, weight_VD: Tensor, target: Tensor, temperature: float) -> _Tile:
    """One softmax; its largest probability gives the normaliser without a second pass of exponentials."""
    logits = _logits(hidden, weight_VD, temperature)
    p = logits.softmax(1)
    return _Tile(logits, p, logits.amax(1) - p.amax(1).log(), target)


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp_M = hidden_MD.new_empty(target_M.shape, dtype=torch.promote_types(hidden_MD.dtype, torch.float32))
        entropy_M = torch.empty_like(logp_M)
        for part in _tiles(target_M.numel(), weight_VD.shape[0]):
            tile = _tile(hidden_MD[part], weight_VD, target_M[part], temperature)
            logp_M[part], entropy_M[part] = tile.logp(), tile.entropy()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden_MD, weight_VD, target_M, entropy_M)
        ctx.temperature = temperature
        return logp_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_MD, weight_VD, target_M, entropy_M = ctx.saved_tensors
        grad_logp_M = torch.zeros_like(entropy_M) if grads[0] is None else grads[0]
        grad_hidden_MD = torch.empty_like(hidden_MD)
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        for part in _tiles(target_M.numel(), weight_VD.shape[0]):
            tile = _tile(hidden_MD[part], weight_VD, target_M[part], ctx.temperature)
            grad_entropy = None if grads[1] is None else grads[1][part]
            slope = tile.slope_(grad_logp_M[part], grad_entropy, entropy_M[part])
            grad_hidden_MD[part] = _spread(slope, ctx.temperature, hidden_MD[part], weight_VD, grad_weight_VD)
        return grad_hidden_MD, grad_weight_VD, None, None


def token_logp(
    hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(log-prob of each target [M], entropy [M]), both with gradient."""
    _check(hidden_MD, weight_VD, target_M)
    logp_M, entropy_M = _TokenLogp.apply(hidden_MD, weight_VD, target_M, temperature)  # type: ignore[no-untyped-call]
    return logp_M, entropy_M


@torch.no_grad()
def token_loss_backward(
    hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float, loss: TokenLoss
) -> Tensor:
    """Add the loss's gradient to the weight's `.grad` and give back that by the hidden states [M, D].

    For losses that are sums over tokens: each tile's gradient is formed while its distributions are at hand, with three
    products with the head's matrix where a separate backward needs four.
    """
    _check(hidden_MD, weight_VD, target_M)
    if weight_VD.requires_grad and weight_VD.grad is None:
        weight_VD.grad = torch.zeros_like(weight_VD)
    grad_weight_VD = weight_VD.grad if weight_VD.requires_grad else None
    grad_hidden_MD = torch.empty_like(hidden_MD)
    for part in _tiles(target_M.numel(), weight_VD.shape[0]):
        tile = _tile(hidden_MD[part], weight_VD, target_M[part], temperature)
        with torch.enable_grad():
            logp, entropy = tile.logp().requires_grad_(), tile.entropy().requires_grad_()
            total = loss(part, logp, entropy)
            slopes: Sequence[Tensor | None] = torch.autograd.grad(total, (logp, entropy), allow_unused=True)
        by_logp = torch.zeros_like(entropy) if slopes[0] is None else slopes[0]
        slope = tile.slope_(by_logp, slopes[1], entropy.detach())
        grad_hidden_MD[part] = _spread(slope, temperature, hidden_MD[part], weight_VD, grad_weight_VD)
    return grad_hidden_MD


def _spread(
    slope: Tensor, temperature: float, hidden: Tensor, weight_VD: Tensor, grad_weight_VD: Tensor | None
) -> Tensor:
    """From the gradient by the logits to that by the hidden states; the weight's is added where it is kept."""
    if temperature != 1.0:
        slope = slope.div_(temperature)
    slope = slope.to(hidden.dtype)
    if grad_weight_VD is not None:
        grad_weight_VD.addmm_(slope.T.to(grad_weight_VD.dtype), hidden.to(grad_weight_VD.dtype))
    return slope @ weight_VD.to(slope.dtype)


def _check(hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor) -> None:
    if hidden_MD.shape[0] != target_M.shape[0] or hidden_MD.shape[1] != weight_VD.shape[1]:
        shapes = [tuple(part.shape) for part in (hidden_MD, weight_VD, target_M)]
        raise ValueError(f"hidden [M, D], weight [V, D] and target [M] do not fit: {shapes}")


def plain_token_logp(
    hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same by plain autograd, twice differentiable: for tests and for TRPO's Fisher products."""
    logp_MV = _logits(hidden_MD, weight_VD, temperature).log_softmax(1)
    entropy_M = -(logp_MV.exp() * logp_MV).sum(1)
    return logp_MV.gather(1, target_M[:, None]).squeeze(1), entropy_M


def _logits(hidden_MD: Tensor, weight_VD: Tensor, temperature: float) -> Tensor:
    logits = hidden_MD @ weight_VD.to(hidden_MD.dtype).T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1.0 else logits / temperature


def _tiles(tokens: int, vocabulary: int) -> list[slice]:
    size = max(TILE_BYTES // (4 * vocabulary), TILE_TOKENS)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def exact_kl(
    old_MD: Tensor, old_weight_VD: Tensor, new_MD: Tensor, new_weight_VD: Tensor, temperature: float = 1.0
) -> Tensor:
    """KL(old || new) of each token [M], exact over the vocabulary; twice differentiable in the new policy."""
    parts = []
    for part in _tiles(old_MD.shape[0], old_weight_VD.shape[0]):
        old = _logits(old_MD[part], old_weight_VD, temperature).log_softmax(1)
        new = _logits(new_MD[part], new_weight_VD, temperature).log_softmax(1)
        parts.append((old.exp() * (old - new)).sum(1))
    return torch.cat(parts)
