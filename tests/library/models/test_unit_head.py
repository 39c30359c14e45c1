"""The head's softmax in one kernel: the loss's gradients and entropies are those of the tiles of before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posttrain.models.forward import kernels, logp
from posttrain.models.forward.logp import Head, loss_tiles
from posttrain.models.forward.unit_head import takes, unit_tiles
from posttrain.rollout import Kept

VOCABULARY, WIDTH, TOKENS = 53, 6, 9
TARGET = torch.arange(TOKENS) * 5
KEPT = Kept(torch.cat([TARGET[1:2], TARGET[1:2] + 1, TARGET[8:]]).int(), torch.tensor([0, 2, 0, 0, 0, 0, 0, 0, 1]))
"""The second token was drawn from two tokens, the last one from one."""


def parts(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(*size, generator=draw).to(dtype) for size in ((TOKENS, WIDTH), (VOCABULARY, WIDTH)))
    return hidden, weight, torch.randn(TOKENS, generator=draw).double()


def run(tiles: object, dtype: torch.dtype, kept: Kept | None, scale: float, temperature: float) -> list[Tensor]:
    """Return the log-probs, entropies, and both gradients of a loss that is not linear in the log-probs."""
    hidden, weight, advantage = parts(dtype)
    head = Head(weight.requires_grad_(), scale=scale)
    found: list[tuple[Tensor, ...]] = []
    for tile in tiles(hidden, head, TARGET, temperature, kept):  # type: ignore[operator]
        loss = (advantage[tile.part] * tile.logp.exp() + tile.logp.square()).sum()
        found.append((tile.logp.detach(), tile.entropy.detach(), tile.backward(loss)))
    assert weight.grad is not None
    return [*(torch.cat(part) for part in zip(*found, strict=True)), weight.grad]


@pytest.mark.parametrize(("scale", "temperature"), [(1.0, 1.0), (0.25, 0.7)])
@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_one_kernel_gives_what_the_tiles_give(
    dtype: torch.dtype,
    limit: float,
    kept: Kept | None,
    scale: float,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logp, "TILE_BYTES", 0)
    monkeypatch.setattr(logp, "TILE_TOKENS", 4)
    wanted, found = (run(tiles, dtype, kept, scale, temperature) for tiles in (loss_tiles, unit_tiles))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert float((one - other).abs().max()) <= limit * max(1.0, float(other.abs().max()))


def test_a_loss_may_not_reach_the_entropy() -> None:
    hidden, weight, _ = parts(torch.float32)
    (tile,) = unit_tiles(hidden, Head(weight), TARGET)
    with pytest.raises(ValueError, match="a gradient through `entropy`"):
        tile.backward((tile.logp - tile.entropy).sum())


def test_a_head_with_a_bias_or_a_cap_has_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _ = parts(torch.float32)
    assert not takes(Head(weight), hidden), "no kernel runs on a CPU"
    monkeypatch.setattr(kernels, "runs", lambda _: True)
    assert takes(Head(weight), hidden) and takes(Head(weight, scale=2.0), hidden)
    assert not takes(Head(weight, cap=30.0), hidden) and not takes(Head(weight, torch.zeros(VOCABULARY)), hidden)
