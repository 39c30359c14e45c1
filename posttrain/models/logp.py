"""Log-probs and entropies of given tokens from hidden states, without ever holding all logits.

    logp_m = z_m[target_m] - logsumexp(z_m),   H_m = logsumexp(z_m) - sum_v p_mv z_mv,   z = h W^T / temperature

Both passes go through the vocabulary in tiles of scored tokens; the backward makes the logits anew, so the memory
does not grow with the number of tokens times the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 16 * 2**20


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logp_M = hidden_MD.new_empty(target_M.shape, dtype=torch.promote_types(hidden_MD.dtype, torch.float32))
        entropy_M = torch.empty_like(logp_M)
        for part in _tiles(target_M.numel(), weight_VD.shape[0]):
            logits = _logits(hidden_MD[part], weight_VD, temperature)
            logz = logits.logsumexp(1)
            logp_M[part] = logits.gather(1, target_M[part, None]).squeeze(1) - logz
            entropy_M[part] = logz - (logits.sub(logz[:, None]).exp_().mul_(logits)).sum(1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden_MD, weight_VD, target_M, entropy_M)
        ctx.temperature = temperature
        return logp_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_MD, weight_VD, target_M, entropy_M = ctx.saved_tensors
        grad_logp_M = torch.zeros_like(entropy_M) if grads[0] is None else grads[0]
        grad_entropy_M = grads[1]
        grad_hidden_MD = torch.empty_like(hidden_MD)
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        for part in _tiles(target_M.numel(), weight_VD.shape[0]):
            logits = _logits(hidden_MD[part], weight_VD, ctx.temperature)
            logp = logits - logits.logsumexp(1, keepdim=True)
            p = logp.exp()
            d = -grad_logp_M[part, None] * p
            d.scatter_add_(1, target_M[part, None], grad_logp_M[part, None].to(d.dtype))
            if grad_entropy_M is not None:
                d -= grad_entropy_M[part, None] * p * (logp + entropy_M[part, None])
            d = (d / ctx.temperature).to(hidden_MD.dtype)
            grad_hidden_MD[part] = d @ weight_VD.to(d.dtype)
            if grad_weight_VD is not None:
                grad_weight_VD.addmm_(d.T.to(grad_weight_VD.dtype), hidden_MD[part].to(grad_weight_VD.dtype))
        return grad_hidden_MD, grad_weight_VD, None, None


def token_logp(
    hidden_MD: Tensor, weight_VD: Tensor, target_M: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(log-prob of each target [M], entropy [M]), both with gradient."""
    if hidden_MD.shape[0] != target_M.shape[0] or hidden_MD.shape[1] != weight_VD.shape[1]:
        shapes = [tuple(part.shape) for part in (hidden_MD, weight_VD, target_M)]
        raise ValueError(f"hidden [M, D], weight [V, D] and target [M] do not fit: {shapes}")
    logp_M, entropy_M = _TokenLogp.apply(hidden_MD, weight_VD, target_M, temperature)  # type: ignore[no-untyped-call]
    return logp_M, entropy_M


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
    size = max(TILE_BYTES // (4 * vocabulary), 1)
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
