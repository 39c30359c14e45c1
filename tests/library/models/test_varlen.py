"""Attention of packed rows: the index algebra of torch's variable-length kernel on a CPU, and masks block by block."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.models.forward.forward import PackedAttention, Scoring, packed_states
from posttrain.models.forward.varlen import attend_segments, kernel, segments_of
from posttrain.rollout import token_rows
from posttrain.text.packing import PackedRows, pack
from tests.library.models.tiny import random_rows, tiny_model

HEADS, KEYS, SIZE = 4, 2, 8
ROWS = {
    "shared prompts": random_rows(9, seed=3),
    "no prompt": ([[], [], [1, 2], [1, 2]], [[3, 4, 5], [6], [7], [8, 9]]),
    "no rest": ([[1, 2, 3], [1, 2, 3], [1, 2, 3], [4]], [[], [5, 6], [], []]),
    "alone": ([[1, 2], [3]], [[4, 5, 6], [7]]),
}


def oracle(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, most_q: int, most_k: int,
    *, scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """What torch's varlen_attn documents, a segment at a time: the causal mask is aligned at the segment's end."""
    left, right = window_size
    assert right == 0 and query_ends.dtype == key_ends.dtype == torch.int32
    found = []
    for place in range(len(query_ends) - 1):
        q = query[query_ends[place] : query_ends[place + 1]]
        k, v = (part[key_ends[place] : key_ends[place + 1]] for part in (key, value))
        assert len(q) <= most_q and len(k) <= most_k
        own = torch.arange(len(k) - len(q), len(k))[:, None]
        seen = (torch.arange(len(k)) <= own) & ((left < 0) | (torch.arange(len(k)) >= own - left))
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        found.append(out[0].transpose(0, 1))
    assert sum(map(len, found)) == len(query), "every packed token has an output"
    return torch.cat(found)


def tensors(packed: PackedRows, dtype: torch.dtype) -> list[Tensor]:
    """Random queries, keys and values of the packed tokens, as a model hands them to attention."""
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, packed.ids_N.numel(), SIZE, generator=draw, dtype=dtype, requires_grad=True)
        for heads in (HEADS, KEYS, KEYS)
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("rows", ROWS)
def test_segments_give_the_attention_of_whole_rows(
    rows: str, window: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.forward.varlen.kernel", lambda: oracle)
    packed = pack(token_rows(*ROWS[rows]))
    found = []
    for segmented in (False, True):
        parts = tensors(packed, dtype)
        if segmented:
            one = [part[0].transpose(0, 1) for part in parts]
            out = attend_segments(*one, segments_of(packed), 0.3, window)  # type: ignore[arg-type]
        else:
            out = PackedAttention(packed).attend(0, *parts, Scoring(0.3, window))[0]  # type: ignore[arg-type]
        slope = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        found.append([out, *torch.autograd.grad((out * slope).sum(), parts)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_model_trains_with_segments_as_with_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(token_rows(*ROWS["shared prompts"]))
    found = []
    for segmented in (False, True):
        if segmented:
            monkeypatch.setattr("posttrain.models.forward.forward.supports", lambda *_: True)
            monkeypatch.setattr("posttrain.models.forward.varlen.kernel", lambda: oracle)
        model = tiny_model().double()
        states = packed_states(model, packed)
        states.square().sum().backward()
        found.append([states.detach(), *(part.grad for part in model.parameters())])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_the_oracle_is_called_as_torchs_kernel_is() -> None:
    """The kernel runs on CUDA alone: a CPU can only check that this version of torch has it with these arguments."""
    found = kernel()
    assert found is not None
    names = [*inspect.signature(oracle).parameters]
    theirs = inspect.signature(found).parameters
    assert len([*theirs][:7]) == len(names[:7]) and set(names[7:]) <= theirs.keys()


@pytest.mark.parametrize("rows", ROWS)
def test_no_pair_of_tokens_is_attended_twice(rows: str) -> None:
    packed = pack(token_rows(*ROWS[rows]))
    segments = segments_of(packed)
    sizes = zip(segments.query_ends.diff().tolist(), segments.key_ends.diff().tolist(), strict=True)
    pairs = sum(queries * keys - queries * (queries - 1) // 2 for queries, keys in sizes)
    assert pairs == int((packed.positions_N + 1).sum())


def test_sixteen_answers_of_a_long_prompt_attend_it_once() -> None:
    """Without sharing the prompt's 2,048 queries would be attended by each of the 16 rows."""
    packed = pack(token_rows([list(range(2048))] * 16, [list(range(512))] * 16))
    segments = segments_of(packed)
    assert int(segments.query_ends[-1]) == packed.ids_N.numel() == 2048 + 16 * 512
    whole = 16 * sum(range(1, 2561))
    assert int((packed.positions_N + 1).sum()) < 0.42 * whole


class Masks(TorchDispatchMode):
    """Records the largest mask that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype == torch.bool:
            self.largest = max(self.largest, out.numel())
        return out


@pytest.mark.parametrize(
    "scoring",
    [Scoring(0.3, 3), Scoring(0.3, 40), Scoring(0.3, None, 2.0), Scoring(0.3, 5, 2.0, torch.linspace(-1, 1, HEADS))],
    ids=["window", "long window", "cap", "all"],
)
def test_masks_are_made_block_by_block(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of [T, T] takes a gigabyte for a row of 32,768 tokens."""
    packed = pack(token_rows([list(range(50))], [list(range(50))]))
    found, largest = [], []
    for size in (1000, 8):
        monkeypatch.setattr("posttrain.models.forward.forward.QUERY_BLOCK", size)
        parts = tensors(packed, torch.float64)
        with Masks() as masks:
            out = PackedAttention(packed).attend(0, *parts, scoring)  # type: ignore[arg-type]
        found.append([out, *torch.autograd.grad(out.square().sum(), parts)])
        largest.append(masks.largest)
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    block = max(8, scoring.window or 0)
    assert largest[0] == 100 * 100 and largest[1] <= block * (block + (scoring.window or 100))
