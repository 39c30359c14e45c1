"""Compute logits, log-probs and entropies of given tokens from hidden states, without ever storing all logits.

    z = cap tanh(scale (h W^T + b) / cap) / temperature        most families have the matrix alone
    logp_m = z_m[target_m] - logsumexp(z_m),   H_m = logsumexp(z_m) - sum_v p_mv z_mv

If a token was drawn from some tokens only (`Kept`), v runs over these, and the logits of all others are OUTSIDE.

Both passes go through the vocabulary in tiles of scored tokens. The backward pass recomputes the logits, so the memory
does not grow with the number of tokens times the vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posttrain.errors import ModelError
from posttrain.models.device import gpu_tile_bytes, unsorted
from posttrain.models.master_weights import gradient_of
from posttrain.rollout import Kept

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Config keys for a soft cap of the logits."""


@dataclass(frozen=True)
class Head:
    """z = cap tanh(scale (h W^T + b) / cap). Most families only have the matrix."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary V."""
        return self.weight_VD.shape[0]

    def logits(self, hidden_MD: Tensor, temperature: float = 1.0) -> Tensor:
        """Return z / temperature [M, V], in float32 or higher precision."""
        logits = product_in_float32(hidden_MD, self.weight_VD.to(hidden_MD.dtype).T)
        if self.bias_V is not None:
            logits = logits + self.bias_V
        return _scaled_and_capped(logits, self.scale, self.cap, temperature)

    def backward_(self, grad_MV: Tensor, logits_MV: Tensor, temperature: float) -> Tensor:
        """Convert the gradient for z / temperature into the gradient for h W^T + b, in place, and return it."""
        if self.cap is not None:
            grad_MV.mul_(1 - (logits_MV * (temperature / self.cap)).square())
        if self.scale != 1.0:
            grad_MV.mul_(self.scale)
        return grad_MV if temperature == 1.0 else grad_MV.div_(temperature)

    def for_products(self, dtype: torch.dtype) -> Head:
        """Return the same head with its matrix converted once instead of in every tile."""
        return replace(self, weight_VD=self.weight_VD.to(dtype))

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Head:
        """Return the same head with changed tensors, e.g. detached, copied or in another precision."""
        return replace(
            self, weight_VD=change(self.weight_VD), bias_V=None if self.bias_V is None else change(self.bias_V)
        )

    def copied(self) -> Head:
        """Return a copy that later updates of the model do not change."""
        return self.map_tensors(lambda part: part.detach().clone())


@dataclass(frozen=True)
class ModuleHead:
    """The same logits from the head's own forward pass, which may be wrapped by an adapter or by sharding."""

    module: nn.Module
    vocabulary: int
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden_MD: Tensor, temperature: float = 1.0) -> Tensor:
        """Return z / temperature [M, V], in float32 or higher precision."""
        return _scaled_and_capped(_at_least_float32(self.module(hidden_MD)), self.scale, self.cap, temperature)

    def copied(self) -> ModuleHead:
        """Return a copy that later updates of the model do not change."""
        return replace(self, module=copy.deepcopy(self.module).requires_grad_(requires_grad=False))


AnyHead = Head | ModuleHead


def product_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right in float32 or higher. CUDA returns its accumulated sum, which has no gradient."""
    if left.is_cuda and left.element_size() == 2 and not torch.is_grad_enabled():
        return torch.mm(left, right, out_dtype=torch.float32)
    return _at_least_float32(left @ right)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _scaled_and_capped(logits: Tensor, scale: float, cap: float | None, temperature: float) -> Tensor:
    """Apply scale, soft cap and temperature. Most families only need the temperature."""
    if scale != 1.0:
        logits = logits * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits if temperature == 1.0 else logits / temperature


def head_of(model: Any) -> Head:
    """Return the head of a causal language model. The check at load detects heads with other operations."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise ModelError(
            what=f"its head is not a matrix ({type(linear).__name__})",
            where=type(model).__name__,
            fix="Use a causal language model whose logits are hidden states times a matrix",
        )
    return Head(linear.weight, linear.bias, *_scale_and_cap(model.config.get_text_config()))


def module_head_of(model: Any) -> ModuleHead:
    """Return the head of a causal language model as a callable module."""
    config = model.config.get_text_config()
    return ModuleHead(model.get_output_embeddings(), config.vocab_size, *_scale_and_cap(config))


def _scale_and_cap(config: Any) -> tuple[float, float | None]:
    multiplied, divided = (getattr(config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
    caps = [float(cap) for cap in (getattr(config, name, None) for name in CAPS) if cap]
    return float(multiplied) / float(divided), caps[0] if caps else None


TILE_BYTES = 16 * 2**20
"""Bytes of a tile on a CPU, whose cache is small; a GPU's: `gpu_tile_bytes`."""
TILE_TOKENS = 64
"""The smallest tile for any vocabulary. Each tile reads and writes the weight's gradient once."""


OUTSIDE = -1e15
"""A logit with probability exactly 0. Products with the probability are 0, even with this logit's square."""


@dataclass(frozen=True)
class _Tile:
    """The distributions of some tokens."""

    logits: Tensor
    p: Tensor
    logz: Tensor
    target: Tensor

    def logp(self) -> Tensor:
        """Return z[target] - log sum exp z."""
        return self.logits.gather(1, self.target[:, None]).squeeze(1) - self.logz

    def entropy(self) -> Tensor:
        """Return log sum exp z - sum p z."""
        if self.p.is_cuda:  # vecdot writes all products there
            return self.logz - torch.bmm(self.p[:, None], self.logits[:, :, None]).flatten()
        mean: Tensor = torch.linalg.vecdot(self.p, self.logits)
        return self.logz - mean

    def grad_logits_(self, grad_logp: Tensor, grad_entropy: Tensor | None, entropy: Tensor) -> Tensor:
        """Return the gradient with respect to the logits, g (1[target] - p) - g_H p (log p + H), in p's memory."""
        scale = -grad_logp[:, None]
        if grad_entropy is not None:
            scale = scale - grad_entropy[:, None] * (self.logits - (self.logz - entropy)[:, None])
        with unsorted():
            return self.p.mul_(scale).scatter_add_(1, self.target[:, None], grad_logp[:, None])

    def rounded_grad(self, grad_logp: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the gradient of `logp` only, in a 16-bit dtype, in one pass, rounded once like `grad_logits_`."""
        scale, target = -grad_logp[:, None], self.target[:, None]
        target_grad = torch.addcmul(grad_logp[:, None], self.p.gather(1, target), scale)
        grad = torch.mul(self.p, scale, out=torch.empty_like(self.p, dtype=dtype))
        with unsorted():
            return grad.scatter_(1, target, target_grad.to(dtype))


def _tile(hidden: Tensor, head: Head, target: Tensor, temperature: float, kept: Kept | None) -> _Tile:
    """Return one softmax. Its largest probability gives the normaliser without a second pass of exponentials."""
    logits = head.logits(hidden, temperature)
    if kept is not None:
        logits.masked_fill_(outside(kept, logits), OUTSIDE)
    p = logits.softmax(1)
    if p.is_cuda:  # one pass less
        most, place = p.max(1, keepdim=True)
        return _Tile(logits, p, (logits.gather(1, place) - most.log()).squeeze(1), target)
    return _Tile(logits, p, logits.amax(1) - p.amax(1).log(), target)


def outside(kept: Kept, like: Tensor) -> Tensor:
    """Return a mask [M, V] of the tokens that each token could not be drawn from."""
    count_M = kept.counts.long()
    row_K = torch.arange(count_M.numel()).repeat_interleave(count_M)
    outside_MV = (count_M > 0).to(like.device)[:, None].repeat(1, like.shape[1])
    outside_MV[row_K.to(like.device), kept.ids.long().to(like.device)] = False
    return outside_MV


def _tile_backward(
    tile: _Tile, head: Head, temperature: float, grads: Sequence[Tensor | None], entropy: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the gradient with respect to products with the head's matrix. `grads`: of logp and entropy."""
    grad_logp = torch.zeros_like(entropy) if grads[0] is None else grads[0]
    plain = temperature == head.scale == 1.0 and head.cap is None and head.bias_V is None
    if tile.p.is_cuda and dtype != tile.p.dtype and plain and grads[1] is None:
        return tile.rounded_grad(grad_logp, dtype)
    return head.backward_(tile.grad_logits_(grad_logp, grads[1], entropy), tile.logits, temperature)


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, head: Head, target_M: Tensor, *how: Any
    ) -> tuple[Tensor, Tensor]:
        temperature, kept, entropy = how
        products = head.for_products(hidden_MD.dtype)
        logp_M = hidden_MD.new_empty(target_M.shape, dtype=torch.promote_types(hidden_MD.dtype, torch.float32))
        entropy_M = torch.full_like(logp_M, torch.nan)
        for part in tiles_of(target_M, weight_VD.shape[0]):
            tile = _tile(hidden_MD[part], products, target_M[part], temperature, kept and kept.part(part))
            logp_M[part] = tile.logp()
            if entropy:
                entropy_M[part] = tile.entropy()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden_MD, weight_VD, bias_V, target_M, entropy_M)
        ctx.kind, ctx.temperature, ctx.kept = (head.scale, head.cap), temperature, kept
        return logp_M, entropy_M

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None, None]:
        hidden_MD, weight_VD, bias_V, target_M, entropy_M = ctx.saved_tensors
        head = Head(weight_VD, bias_V, *ctx.kind).for_products(hidden_MD.dtype)
        grad_hidden_MD = torch.empty_like(hidden_MD)
        pairs = zip((weight_VD, bias_V), ctx.needs_input_grad[1:], strict=False)
        grad_head = HeadGradient(*(_sums_like(part) if need else None for part, need in pairs))
        for part in tiles_of(target_M, weight_VD.shape[0]):
            tile = _tile(hidden_MD[part], head, target_M[part], ctx.temperature, ctx.kept and ctx.kept.part(part))
            of_part = [None if grad is None else grad[part] for grad in grads]
            grad_logits = _tile_backward(tile, head, ctx.temperature, of_part, entropy_M[part], hidden_MD.dtype)
            grad_hidden_MD[part] = _head_backward(grad_logits, hidden_MD[part], head, grad_head)
        return grad_hidden_MD, grad_head.weight_VD, grad_head.bias_V, None, None, None, None, None


def _sums_like(part: Tensor) -> Tensor:
    """Return zeros for sums of products over all tiles, in float32 or higher precision."""
    return torch.zeros_like(part, dtype=torch.promote_types(part.dtype, torch.float32))


@dataclass(frozen=True)
class HeadGradient:
    """Accumulators of a head's gradient. None: the part is not trained."""

    weight_VD: Tensor | None
    bias_V: Tensor | None

    @staticmethod
    def of(head: Head) -> HeadGradient:
        """Return the `.grad` of the trained parts, allocated where it is None."""
        parts = (head.weight_VD, head.bias_V)
        return HeadGradient(*(gradient_of(part) if part is not None and part.requires_grad else None for part in parts))


def token_logp(
    hidden_MD: Tensor,
    head: AnyHead,
    target_M: Tensor,
    temperature: float = 1.0,
    kept: Kept | None = None,
    *,
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return (log-prob of each target [M], entropy [M] or NaN), with gradient. `kept`: only over these tokens."""
    if isinstance(head, ModuleHead):
        return plain_token_logp(hidden_MD, head, target_M, temperature, kept)
    check_shapes(hidden_MD, head, target_M)
    logp_M, entropy_M = _TokenLogp.apply(  # type: ignore[no-untyped-call]
        hidden_MD, head.weight_VD, head.bias_V, head, target_M, temperature, kept, entropy
    )
    return logp_M, entropy_M


@dataclass(frozen=True)
class LossTile:
    """A tile of scored tokens, with their distributions in memory, for losses that are sums over tokens."""

    part: slice
    """The slice of the scored tokens."""
    logp: Tensor
    """A leaf, like `entropy`. Compute the loss from both and pass it to `backward`."""
    entropy: Tensor
    _tile: _Tile
    _hidden: Tensor
    _head: Head
    _grad_head: HeadGradient
    _temperature: float

    @torch.no_grad()
    def backward(self, loss: Tensor) -> Tensor:
        """Add the loss's gradient to the head's `.grad`. Return the gradient for the tokens' hidden states."""
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, (self.logp, self.entropy), allow_unused=True)
        dtype, entropy = self._hidden.dtype, self.entropy.detach()
        grad_logits = _tile_backward(self._tile, self._head, self._temperature, grads, entropy, dtype)
        return _head_backward(grad_logits, self._hidden, self._head, self._grad_head)


def loss_tiles(
    hidden_MD: Tensor, head: Head, target_M: Tensor, temperature: float = 1.0, kept: Kept | None = None
) -> Iterator[LossTile]:
    """Yield the scored tokens of a loss that is a sum over tokens, tile by tile. Pass each tile's loss back.

    A tile's gradient is computed while its distributions are in memory. This needs three products with the head's
    matrix, where a separate backward pass needs four.
    """
    check_shapes(hidden_MD, head, target_M)
    grad_head = HeadGradient.of(head)
    head = head.for_products(hidden_MD.dtype)
    for part in tiles_of(target_M, head.weight_VD.shape[0]):
        hidden = hidden_MD[part]
        with torch.no_grad():
            tile = _tile(hidden, head, target_M[part], temperature, kept and kept.part(part))
            leaves = tile.logp().requires_grad_(), tile.entropy().requires_grad_()
        yield LossTile(part, *leaves, tile, hidden, head, grad_head, temperature)


def _head_backward(grad_logits: Tensor, hidden: Tensor, head: Head, grad: HeadGradient) -> Tensor:
    """Return the gradient with respect to the hidden states. Add the head's weight and bias gradient to `grad`."""
    if grad.bias_V is not None:
        grad.bias_V.add_(grad_logits.sum(0))
    grad_logits = grad_logits.to(hidden.dtype)
    if grad.weight_VD is not None:
        add_product_(grad.weight_VD, grad_logits.T, hidden)
    return grad_logits @ head.weight_VD.to(grad_logits.dtype)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total += left @ right, multiplied in their dtype and summed in total's dtype."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cuda":
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:  # torch rounds the product of each tile: only CUDA returns another dtype than that of the factors
        total.add_(left @ right)


def check_shapes(hidden_MD: Tensor, head: Head, target_M: Tensor) -> None:
    """Raise ValueError if the tensors do not belong together."""
    if hidden_MD.shape[0] != target_M.shape[0] or hidden_MD.shape[1] != head.weight_VD.shape[1]:
        shapes = [tuple(part.shape) for part in (hidden_MD, head.weight_VD, target_M)]
        raise ValueError(f"hidden [M, D], weight [V, D] and target [M] do not fit: {shapes}")


def plain_token_logp(
    hidden_MD: Tensor, head: AnyHead, target_M: Tensor, temperature: float = 1.0, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """Return (log-prob, entropy) with plain autograd. The backward pass recomputes each tile's logits."""

    def tile(hidden: Tensor, target: Tensor, kept: Kept | None) -> tuple[Tensor, Tensor]:
        logits = head.logits(hidden, temperature)
        if kept is not None:
            logits = logits.masked_fill(outside(kept, logits), OUTSIDE)
        logp_MV = logits.log_softmax(1)
        entropy_M = -(logp_MV.exp() * logp_MV).sum(1)
        return logp_MV.gather(1, target[:, None]).squeeze(1), entropy_M

    tiles = tiles_of(target_M, head.vocabulary)
    parts = [(hidden_MD[part], target_M[part], kept and kept.part(part)) for part in tiles]
    if not parts:
        return tile(hidden_MD, target_M, None)
    logps, entropies = zip(*(checkpoint(tile, *part, use_reentrant=False) for part in parts), strict=True)
    return torch.cat(logps), torch.cat(entropies)


def tiles_of(rows_M: Tensor, vocabulary: int) -> list[slice]:
    """Return slices of the scored tokens whose logits fit into a tile."""
    tokens, tile_bytes = rows_M.shape[0], gpu_tile_bytes(rows_M.device) if rows_M.is_cuda else TILE_BYTES
    size = max(tile_bytes // (4 * vocabulary), TILE_TOKENS)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def exact_kl(old_MD: Tensor, old_head: AnyHead, new_MD: Tensor, new_head: AnyHead, temperature: float = 1.0) -> Tensor:
    """Return KL(old || new) per token [M], exact over the vocabulary and twice differentiable in the new policy."""
    parts = []
    for part in tiles_of(old_MD, old_head.vocabulary):
        old = old_head.logits(old_MD[part], temperature).log_softmax(1)
        new = new_head.logits(new_MD[part], temperature).log_softmax(1)
        parts.append((old.exp() * (old - new)).sum(1))
    return torch.cat(parts)
