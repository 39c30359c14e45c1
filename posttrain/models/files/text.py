"""The text side of a model folder: tokenizer, chat template, end tokens and context length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.models.files.store import load_config, load_stop_tokens, load_tokenizer
from posttrain.text.chat import DATE, ChatText


def load_text(folder: Path, today: str = DATE, variables: Mapping[str, Any] | None = None) -> ChatText:
    """Return the folder's chat text, with the end tokens of its generation_config.json and the model's context."""
    context, ends = context_of(load_config(folder)), load_stop_tokens(folder)
    return ChatText(load_tokenizer(folder), str(folder), ends, today, context=context, variables=variables)


def context_of(config: Any) -> int | None:
    """Return the most tokens of a row by the model's config; None for families that set no limit."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    return context if isinstance(context, int) and context > 0 else None
