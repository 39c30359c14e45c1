"""Attention that torch's compiler can trace, so that a compiled layer has no break in the middle.

It is one call of the kernel for segments. The compiler would compile again for each new number, so numbers are the
shapes of empty tensors, and keys are always gathered. Calls of FlashAttention 2 are cut instead (`varlen`), which
depends on the rows. So attention is traced only with a newer kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from posttrain.models.forward.flash import Heads, newest, use_newest_for
from posttrain.models.forward.varlen import Segments, kernel

TRACED: list[Heads] = []
"""The heads of the models whose compiled layers trace their attention; empty: none does."""


class TracedAttention:
    """The segments of a packed batch as tensors."""

    def __init__(self, segments: Segments, tokens: int, device: torch.device) -> None:
        """`tokens`: of the batch."""
        self._ends = segments.query_ends, segments.key_ends
        self._keys = torch.arange(tokens, device=device) if segments.key_tokens is None else segments.key_tokens
        self._longest = [torch.empty(0, length) for length in (segments.longest_query, segments.longest_key)]
        self._kernel = kernel()

    def attend(self, query_NHD: Tensor, key_NHD: Tensor, value_NHD: Tensor, scale: float, window: int | None) -> Tensor:
        """Return the outputs of the packed tokens [N, H, D]."""
        assert self._kernel is not None, "check `heads_of` first"
        key_NHD, value_NHD = (part.index_select(0, self._keys) for part in (key_NHD, value_NHD))
        out: Tensor = self._kernel(
            query_NHD.contiguous(), key_NHD, value_NHD, *self._ends, *(part.shape[1] for part in self._longest),
            scale=scale, window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query_NHD.shape[1] != key_NHD.shape[1],
        )  # fmt: skip
        return out


def heads_of(model: Any) -> Heads | None:
    """Return the heads of a model whose attention can be traced; None if no newer kernel supports them."""
    weight, config = model.get_input_embeddings().weight, model.config.get_text_config()
    if weight.device.type != "cuda" or weight.element_size() != 2 or kernel() is None:
        return None
    queries = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // queries)
    heads = Heads(queries, int(config.num_key_value_heads or queries), size, weight.dtype, weight.device)
    return heads if newest(heads) is not None else None


@contextmanager
def tracing(heads: Heads) -> Iterator[None]:
    """Let packed passes provide the tensors that their compiled layers trace."""
    TRACED.append(heads)
    try:
        yield
    finally:
        TRACED.pop()


def traced_of(segments: Segments, tokens: int, device: torch.device) -> TracedAttention | None:
    """Choose the newest kernel. Return the tensors that compiled layers trace in a pass; None if there are none."""
    if not TRACED or device.type != "cuda":
        return None
    use_newest_for(TRACED[-1])
    return TracedAttention(segments, tokens, device)
