"""The bound: the same useful work in loops written by hand for one model and one machine.

No module, no row of an algorithm table, nothing general: a Llama in a few functions, its projections fused into two
matrices, norms and gates with gradients written out, the head's gradient formed in the forward pass where the loss is
a sum over tokens, and a decoding loop of bare tensor calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.speed.case import BETAS, CLIP, LEARNING_RATE, Shape

TILE_BYTES = 16 * 2**20
SIMILAR = 1.25
"""Rows of one attention call: the longest is at most this much longer than the shortest."""
EPS = 1e-6


class Norm(torch.autograd.Function):
    """x / rms(x) * weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS)).rsqrt_()
        y = x * scale
        ctx.save_for_backward(y, scale, weight)
        normed: Tensor = y * weight
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        y, scale, weight = ctx.saved_tensors
        (grad,) = grads
        product = grad * y
        grad_weight = product.sum(0)
        slope = product.mv(weight).div_(y.shape[-1])
        return (grad * weight).addcmul_(y, slope[:, None], value=-1).mul_(scale), grad_weight


class Gate(torch.autograd.Function):
    """silu(a) * b for [a | b]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        a, b = both.chunk(2, dim=-1)
        return torch.nn.functional.silu(a).mul_(b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        (grad,) = grads
        a, b = both.chunk(2, dim=-1)
        made = torch.empty_like(both)
        torch.mul(grad, torch.nn.functional.silu(a), out=made[:, a.shape[1] :])
        torch.ops.aten.silu_backward.grad_input(grad * b, a, grad_input=made[:, : a.shape[1]])
        return made


class Llama:
    """The model's weights, fused, and its forward pass over packed rows."""

    def __init__(self, model: Any, shape: Shape) -> None:
        core = model.base_model
        self.shape, self.heads, self.size = shape, shape.heads, shape.width // shape.heads
        self.embedding = _leaf(core.embed_tokens.weight)
        self.norm = _leaf(core.norm.weight)
        self.layers = [
            (
                _leaf(layer.input_layernorm.weight),
                _leaf(torch.cat([getattr(layer.self_attn, f"{n}_proj").weight for n in "qkv"])),
                _leaf(layer.self_attn.o_proj.weight),
                _leaf(layer.post_attention_layernorm.weight),
                _leaf(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])),
                _leaf(layer.mlp.down_proj.weight),
            )
            for layer in core.layers
        ]
        self.parameters = [self.embedding, self.norm, *(part for layer in self.layers for part in layer)]
        steps = 1.0 / 10_000.0 ** (torch.arange(0, self.size, 2).float() / self.size)
        angles = torch.outer(torch.arange(4096).float(), steps)
        self.cos = torch.cat([angles, angles], 1).cos()
        self.sin = torch.cat([-angles.sin(), angles.sin()], 1)

    def states(self, rows: Packed, embedded: Tensor | None = None) -> Tensor:
        """Last hidden states [N, D]."""
        x = self.embedding[rows.ids] if embedded is None else embedded
        cos, sin = self.cos[rows.positions][:, None], self.sin[rows.positions][:, None]
        for norm1, qkv, out, norm2, gate_up, down in self.layers:
            x = x + self._attend(_norm(x, norm1) @ qkv.T, rows, cos, sin) @ out.T
            x = x + _gate(_norm(x, norm2) @ gate_up.T) @ down.T
        return _norm(x, self.norm)

    def _attend(self, qkv: Tensor, rows: Packed, cos: Tensor, sin: Tensor) -> Tensor:
        split = qkv.view(-1, 3 * self.heads, self.size)
        turned = _turn(split[:, : 2 * self.heads], cos, sin)
        q, k, v = turned[:, : self.heads], turned[:, self.heads :], split[:, 2 * self.heads :]
        return rows.attend(q, k, v).flatten(1)


class Turn(torch.autograd.Function):
    """Rotary positions: x cos + swap(x) sin, where sin carries the sign; the backward turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        (grad,) = grads
        return (grad * cos).addcmul_(grad.roll(grad.shape[-1] // 2, -1), sin, value=-1), None, None


_norm: Callable[[Tensor, Tensor], Tensor] = Norm.apply
_gate: Callable[[Tensor], Tensor] = Gate.apply
_turn: Callable[[Tensor, Tensor, Tensor], Tensor] = Turn.apply


class Packed:
    """Rows one after the other, a prompt stored once for adjacent rows that share it."""

    def __init__(self, rows: Sequence[tuple[list[int], list[int]]]) -> None:
        ids: list[int] = []
        positions: list[int] = []
        source: list[int] = []
        spans: list[tuple[int, int, int, int]] = []
        begin = edge = 0
        self.last: list[int] = []
        before: list[int] | None = None
        for prompt, answer in rows:
            if prompt != before or before is None:
                begin, edge = len(ids), len(ids) + len(prompt)
                ids += prompt
                positions += range(len(prompt))
                before = prompt
            start, end = len(ids), len(ids) + len(answer)
            spans.append((begin, edge, start, end))
            source += [edge - 1, *range(start, end - 1)]
            ids += answer
            positions += range(len(prompt), len(prompt) + len(answer))
            self.last.append(len(ids) - 1)
        self.ids, self.positions = torch.tensor(ids), torch.tensor(positions)
        self.source = torch.tensor(source)
        self.target = torch.tensor([token for _, answer in rows for token in answer])
        self.lengths = torch.tensor([len(answer) for _, answer in rows])
        self.last_B = torch.tensor(self.last)
        self._side_by_side(spans)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[N, H, d] each: rows of similar length side by side, padded on the right."""
        outputs = []
        for gather in self.gathers:
            q_, k_, v_ = (_rows(part, gather).transpose(1, 2) for part in (q, k, v))
            outputs.append(sdpa(q_, k_, v_, is_causal=True).transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.take)

    def _side_by_side(self, spans: list[tuple[int, int, int, int]]) -> None:
        """Gather indices [S, T] of rows of similar length, and where each token's output comes from.

        A span is (start of the prompt, its end, start of the answer, its end).
        """
        self.gathers: list[Tensor | slice] = []
        self.take, base = torch.empty(len(self.ids), dtype=torch.long), 0
        size = [edge - start + end - first for start, edge, first, end in spans]
        left = sorted(range(len(spans)), key=lambda row: -size[row])
        while left:
            width = size[left[0]]
            bucket = [row for row in left if size[row] * SIMILAR >= width]
            left = left[len(bucket) :]
            gather = torch.zeros(len(bucket), width, dtype=torch.long)
            for place, row in enumerate(bucket):
                start, edge, first, end = spans[row]
                tokens = torch.cat([torch.arange(start, edge), torch.arange(first, end)])
                gather[place, : size[row]] = tokens
                self.take[tokens] = torch.arange(size[row]) + base + place * width
            start, edge, first, end = spans[bucket[0]]
            self.gathers.append(slice(start, end) if len(bucket) == 1 and edge == first else gather)
            base += gather.numel()


def _rows(part: Tensor, gather: Tensor | slice) -> Tensor:
    """[N, H, d] -> [S, T, H, d]; a single row is not copied."""
    if isinstance(gather, slice):
        return part[None, gather]
    return part.index_select(0, gather.flatten()).view(*gather.shape, *part.shape[1:])


def _leaf(weight: Tensor) -> Tensor:
    return weight.detach().clone().requires_grad_()


def tiles(tokens: int, vocabulary: int) -> list[slice]:
    """Parts of the scored tokens whose logits fit in a tile."""
    size = max(TILE_BYTES // (4 * vocabulary), 1)
    return [slice(i, min(i + size, tokens)) for i in range(0, tokens, size)]


@torch.no_grad()
def logps(states: Tensor, head: Tensor, target: Tensor) -> Tensor:
    """Log-probs alone, without a graph."""
    found = []
    for part in tiles(target.numel(), head.shape[0]):
        logits = states[part] @ head.T
        found.append(logits.gather(1, target[part, None]).squeeze(1) - logits.logsumexp(1))
    return torch.cat(found)


@torch.no_grad()
def token_step(
    model: Llama, rows: Packed, slope: Callable[[slice, Tensor], tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """(loss, mean entropy) of a sum over tokens, gradients added to the parameters: three products for the head."""
    embedded = model.embedding.index_select(0, rows.ids).requires_grad_()
    with torch.enable_grad():
        states = model.states(rows, embedded)
    hidden, head = states.detach()[rows.source], model.embedding
    head.grad = torch.zeros_like(head) if head.grad is None else head.grad
    grad_hidden = torch.empty_like(hidden)
    loss = entropy = 0.0
    for part in tiles(rows.target.numel(), head.shape[0]):
        target = rows.target[part, None]
        logits = hidden[part] @ head.T
        chosen = logits.gather(1, target)
        top = logits.amax(1, keepdim=True)
        p = logits.sub(top).exp_()
        mass = p.sum(1, keepdim=True)
        mean = torch.linalg.vecdot(p, logits).unsqueeze(1) / mass
        logz = top + mass.log()
        entropy += float((logz - mean).sum())
        item, g = slope(part, (chosen - logz).squeeze(1))
        loss += float(item.sum())
        p.mul_(-g[:, None] / mass).scatter_add_(1, target, g[:, None])
        torch.mm(p, head, out=grad_hidden[part])
        head.grad.addmm_(p.T, hidden[part])
    states.backward(torch.zeros_like(states).index_add_(0, rows.source, grad_hidden))  # type: ignore[no-untyped-call]
    if embedded.grad is not None:
        head.grad.index_add_(0, rows.ids, embedded.grad)
    return loss, entropy / rows.target.numel()


class Logp(torch.autograd.Function):
    """Log-probs with gradient where a row's loss needs them all: logits made twice, never all at once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, head, target)
        return logps(hidden, head, target)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, head, target = ctx.saved_tensors
        (grad,) = grads
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head)
        for part in tiles(target.numel(), head.shape[0]):
            p = (hidden[part] @ head.T).softmax(1)
            p.mul_(-grad[part, None]).scatter_add_(1, target[part, None], grad[part, None])
            torch.mm(p, head, out=grad_hidden[part])
            grad_head.addmm_(p.T, hidden[part])
        return grad_hidden, grad_head, None


class Adam:
    """Clipped gradients and AdamW in one fused pass."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._inner = torch.optim.AdamW(self._parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0, fused=True)

    def step(self) -> float:
        """Return one update; the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, CLIP))
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)
        return norm
