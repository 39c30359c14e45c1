"""Under bf16 every product of the head is bf16, forward and backward, and its gradient stays near that of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.errors import ModelError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.logp import (
    AnyHead,
    Head,
    ModuleHead,
    _scale_and_cap,
    _tile,
    _tile_backward,
    exact_kl,
    head_of,
    loss_tiles,
    module_head_of,
    outside,
    plain_token_logp,
    product_in_float32,
    token_logp,
)
from posttrain.models.master_weights import compute_in_bf16
from posttrain.rollout import Kept
from tests.library.models.test_fast_paths import closure, models_of, objectives
from tests.library.models.tiny import tiny_model

BF16 = DeviceParams(device="cpu", precision="bf16", threads=1)
VOCABULARY = 97
TOKENS, WIDTH = 40, 16


class Products(TorchDispatchMode):
    """Records the factors and the result of each matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[list[Tensor], Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "linear"):
            factors = [one for one in args if isinstance(one, Tensor)][-2:]
            self.found.append((factors, result))
        return result

    def of(self, size: int) -> list[list[torch.dtype]]:
        """The dtypes of the factors and the result of each product with a side of that size."""
        return [
            [one.dtype for one in (*factors, result)]
            for factors, result in self.found
            if any(size in one.shape for one in factors)
        ]


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_BYTES", 4 * VOCABULARY * 9)
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 1)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False], ids=["matrix", "module"])
@pytest.mark.parametrize("name", objectives())
def test_under_bf16_no_product_over_the_vocabulary_is_float32(name: str, fused: bool) -> None:
    """On a GPU a float32 product runs without tensor cores, at a fifteenth of the rate."""
    step = closure(objectives()[name], models_of(name, Runtime(BF16, fused=fused), 64))
    with Products() as products:
        step()
    found = products.of(VOCABULARY)
    assert len(found) > 10
    assert {dtype for dtypes in found for dtype in dtypes} == {torch.bfloat16}


def head_and_rows() -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return linear, torch.randn(TOKENS, WIDTH, requires_grad=True), torch.randint(0, VOCABULARY, (TOKENS,))


def heads(linear: nn.Linear) -> dict[str, AnyHead]:
    return {"matrix": Head(linear.weight), "module": ModuleHead(linear, VOCABULARY)}


@pytest.mark.parametrize("kind", ["matrix", "module"])
def test_the_backward_pass_computes_the_logits_of_the_forward_pass_again(kind: str) -> None:
    """A gradient of other logits than those of the loss would be biased."""
    linear, hidden, target = head_and_rows()
    compute_in_bf16(linear)
    with Products() as products:
        logp, _ = token_logp(hidden.bfloat16(), heads(linear)[kind], target)
        (-logp.sum()).backward()  # type: ignore[no-untyped-call]
    bits = [
        result.view(torch.int16).numpy().tobytes()
        for (left, _), result in products.found
        if left.shape[1] == WIDTH and result.shape[1] == VOCABULARY
    ]
    half = len(bits) // 2
    assert half == -(-TOKENS // 9)
    assert sorted(bits[:half]) == sorted(bits[half:])


def by_autograd(head: AnyHead, hidden: Tensor, target: Tensor, loss: Callable[..., Tensor]) -> Tensor:
    loss(*token_logp(hidden, head, target)).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    return hidden.grad


def by_tiles(head: AnyHead, hidden: Tensor, target: Tensor, loss: Callable[..., Tensor]) -> Tensor:
    assert isinstance(head, Head)
    tiles = loss_tiles(hidden.detach(), head, target)
    return torch.cat([tile.backward(loss(tile.logp, tile.entropy)) for tile in tiles])


@pytest.mark.parametrize("path", [by_autograd, by_tiles])
def test_bf16_gradients_of_the_head_are_within_5e_3_of_float64(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 64)
    torch.manual_seed(0)
    weight, hidden = torch.randn(500, 64) * 0.2, torch.randn(700, 64)
    target = torch.randint(0, 500, (700,))

    def loss(logp: Tensor, entropy: Tensor) -> Tensor:
        return -(logp + 0.1 * entropy).sum()

    found = []
    for dtype in (torch.float64, torch.float32):
        matrix, rows = (one.to(dtype, copy=True).requires_grad_() for one in (weight, hidden))
        precise = dtype == torch.float64
        if not precise:
            matrix, rows = (one.detach().bfloat16().requires_grad_() for one in (weight, hidden))
            matrix.grad_dtype = torch.float32
        by_rows = path(Head(matrix), rows, target, loss)
        assert matrix.grad is not None and matrix.grad.dtype == dtype
        found.append((by_rows.double(), matrix.grad.double()))
    for exact, near in zip(*found, strict=True):
        assert 1e-4 < float((near - exact).norm() / exact.norm()) < 5e-3


def head(kind: str = "plain") -> Head:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    bias = torch.randn(7, generator=draw, dtype=torch.float64) if kind == "bias" else None
    return Head(weight, bias, *((0.5, 2.0) if kind == "cap" else ()))


def reference(kind: str, hidden: Tensor, temperature: float) -> Tensor:
    """Log-probs [M, V] by their definition."""
    one = head(kind)
    logits = hidden @ one.weight_VD.T + (0 if one.bias_V is None else one.bias_V)
    logits = logits * one.scale
    logits = logits if one.cap is None else one.cap * (logits / one.cap).tanh()
    return (logits / temperature).log_softmax(1)


HIDDEN = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TARGET = torch.tensor([0, 6, 3, 3, 1])
KEPT = Kept(torch.tensor([0, 2, 3, 4], dtype=torch.int32), torch.tensor([2, 0, 2, 0, 0], dtype=torch.int32))


@pytest.mark.parametrize("kind", ["plain", "bias", "cap"])
def test_log_probs_and_entropy_are_those_of_the_definition(kind: str) -> None:
    logp_MV = reference(kind, HIDDEN, 0.7)
    wanted = logp_MV.gather(1, TARGET[:, None]).squeeze(1), -(logp_MV.exp() * logp_MV).sum(1)
    for found in (token_logp(HIDDEN, head(kind), TARGET, 0.7), plain_token_logp(HIDDEN, head(kind), TARGET, 0.7)):
        torch.testing.assert_close(found, wanted)
    assert bool(token_logp(HIDDEN, head(kind), TARGET, entropy=False)[1].isnan().all())
    empty = plain_token_logp(HIDDEN[:0], head(kind), TARGET[:0])
    assert [len(part) for part in empty] == [0, 0]


def test_log_probs_over_the_kept_tokens() -> None:
    logp_MV = reference("plain", HIDDEN, 1.0)
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[0, [1, 3, 4, 5, 6]] = True
    mask[2, [0, 1, 2, 5, 6]] = True
    assert torch.equal(outside(KEPT, logp_MV), mask)
    wanted = logp_MV.masked_fill(mask, -torch.inf).log_softmax(1).gather(1, TARGET[:, None]).squeeze(1)
    torch.testing.assert_close(token_logp(HIDDEN, head(), TARGET, 1.0, KEPT)[0], wanted)
    torch.testing.assert_close(plain_token_logp(HIDDEN, head(), TARGET, 1.0, KEPT)[0], wanted)


def test_a_tile_has_one_softmax() -> None:
    tile = _tile(HIDDEN, head(), TARGET, 1.0, None)
    logp_MV = reference("plain", HIDDEN, 1.0)
    torch.testing.assert_close(tile.p, logp_MV.exp())
    torch.testing.assert_close(tile.logp(), logp_MV.gather(1, TARGET[:, None]).squeeze(1))
    entropy = -(logp_MV.exp() * logp_MV).sum(1)
    torch.testing.assert_close(tile.entropy(), entropy)
    grad = torch.arange(1.0, 6.0, dtype=torch.float64)
    wanted = grad[:, None] * (nn.functional.one_hot(TARGET, 7) - logp_MV.exp())
    rounded = tile.rounded_grad(grad, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        _tile_backward(tile, head(), 1.0, [grad, None], entropy, torch.float64), wanted, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("kind", ["plain", "bias", "cap"])
def test_gradients_of_tiles_are_those_of_autograd(kind: str) -> None:
    one = head(kind).map_tensors(lambda part: part.requires_grad_())
    hidden = HIDDEN.clone().requires_grad_()
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    plain_logp, plain_entropy = plain_token_logp(hidden, one, TARGET, 0.7)
    (weights * plain_logp + plain_entropy).sum().backward()
    wanted = hidden.grad, one.weight_VD.grad
    one.weight_VD.grad = None
    if one.bias_V is not None:
        one.bias_V.grad = None
    parts = [
        tile.backward((weights[tile.part] * tile.logp + tile.entropy).sum())
        for tile in loss_tiles(HIDDEN, one, TARGET, 0.7)
    ]
    torch.testing.assert_close((torch.cat(parts), one.weight_VD.grad), wanted)


def test_heads_of_a_model() -> None:
    model = tiny_model()
    model.config.logit_scale, model.config.logits_scaling, model.config.final_logit_softcapping = 3.0, 2.0, 30.0
    found, module = head_of(model), module_head_of(model)
    assert found.weight_VD is model.lm_head.weight and found.vocabulary == module.vocabulary == 97
    assert (found.scale, found.cap) == (module.scale, module.cap) == _scale_and_cap(model.config) == (1.5, 30.0)
    states = torch.randn(3, 32)
    torch.testing.assert_close(found.logits(states, 0.5), module.logits(states, 0.5))
    copied, module_copy = found.copied(), module.copied()
    model.lm_head.weight.data.zero_()
    assert copied.weight_VD.any() and module_copy.module.weight.any() and not copied.weight_VD.requires_grad
    model.lm_head = nn.Identity()
    with pytest.raises(ModelError, match="its head is not a matrix"):
        head_of(model)


def test_the_exact_kl_and_products_in_float32() -> None:
    other = HIDDEN.flip(0)
    old, new = reference("cap", HIDDEN, 0.7), reference("cap", other, 0.7)
    torch.testing.assert_close(exact_kl(HIDDEN, head("cap"), other, head("cap"), 0.7), (old.exp() * (old - new)).sum(1))
    half = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    product = product_in_float32(half, half.T)
    assert product.dtype == torch.float32 and product.tolist() == [[5.0]]
