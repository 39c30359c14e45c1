"""Under bf16 every product of the head is bf16, forward and backward, and its gradient stays near that of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.logp import AnyHead, Head, ModuleHead, loss_tiles, token_logp
from posttrain.models.master_weights import compute_in_bf16
from tests.library.models.test_fast_paths import closure, models_of, objectives

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
