"""Texts of a policy for another server, whose chat template could read parts of them as the end of a turn."""

from __future__ import annotations

import re
from typing import Final

_TOKENS: Final = re.compile(
    r"<\|(?=[\w-]{1,40}\|>)|<(?=/?s>|(?:start|end)_of_turn>|(?:unk|bos|eos|pad)>|｜)|\[(?=/?INST\])|<(?=</?SYS>>)"
)
"""The beginnings of special tokens of Llama, Qwen, Gemma, Mistral and DeepSeek."""


def without_chat_tokens(text: str) -> str:
    """Return a text with special tokens such as `<|im_end|>` written as `< |im_end|>`: readable, but not special."""
    return _TOKENS.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
