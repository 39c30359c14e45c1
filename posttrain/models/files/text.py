"""The text side of a model folder: tokenizer, chat template, end tokens and context length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.text.chat import DATE, ChatText


def load_text(folder: Path, today: str = DATE, variables: Mapping[str, Any] | None = None) -> ChatText:
    """Return the folder's chat text, with the end tokens of its generation_config.json and the model's context."""
    from posttrain.models.files.store import load_config, load_stop_tokens, load_tokenizer

    context, ends = context_of(load_config(folder)), load_stop_tokens(folder)
    return ChatText(load_tokenizer(folder), str(folder), ends, today, context=context, variables=variables)


def context_of(config: Any) -> int | None:
    """Return the model's context length from its config; None for families without a limit.

    With `longrope` it is the pretraining length, because beyond it transformers rotates every row of a call by the
    longest one.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = [part for part in (rope, *rope.values()) if isinstance(part, dict) and part.get("rope_type") == "longrope"]
    lengths = [getattr(text, "max_position_embeddings", None)]
    lengths += [part.get("original_max_position_embeddings") for part in kinds]
    return min((length for length in lengths if isinstance(length, int) and length > 0), default=None)
