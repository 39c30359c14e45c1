"""Whether the model's context and the memory hold what a stage is asked to sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.errors import ParamsError
from posttrain.models.device import free_bytes
from posttrain.sampling.sampler import SamplingParams

SAMPLE_BYTES = 500
"""What the shortest completion takes at least: its ids, their log-probs, its text and its row."""


def context_of(model: Any) -> int | None:
    """The most tokens of a row, as the model's config has it."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return context if isinstance(context, int) and context > 0 else None


def check_capacity(
    model: Any, prompts: Sequence[Sequence[int]], count: int, params: SamplingParams, section: str
) -> None:
    """Refuse `count` completions that memory will not hold, or that could be longer than the model's context."""
    where = f"{section} (params.yaml)"
    free = free_bytes(torch.device("cpu"))
    if count * SAMPLE_BYTES > free:
        what = f"{count:,} completions at a time take over {count * SAMPLE_BYTES / 1e9:.3g} GB of memory, and "
        what += f"{free / 1e9:.3g} GB are free"
        raise ParamsError(what=what, where=where, fix="Lower the number of prompts or of samples of each")
    context = context_of(model)
    longest = max((len(ids) for ids in prompts), default=0)
    if context is not None and context < longest + params.max_tokens:
        what = f"a prompt of {longest} tokens and sampling.max_tokens = {params.max_tokens} more are longer than the "
        what += f"model's context of {context}"
        raise ParamsError(what=what, where=where, fix="Lower sampling.max_tokens, or give shorter prompts")
