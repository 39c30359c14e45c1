"""A small model and tokenizer for tests, made in a second and the same every time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from posttrain.models.head import Head
from posttrain.models.store import load_tokenizer, new_model, save_model
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText

TEXTS = [f"{a}+{b}={a + b} so the answer is #### {a + b}" for a in range(20) for b in range(20)]


def tiny_model(seed: int = 0, vocabulary: int = 97, kv_heads: int = 2) -> Any:
    """A two-layer Qwen3 with weights spread widely enough that mistakes show."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=kv_heads,
        head_dim=8, intermediate_size=48, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return new_model(config, seed)


def tiny_folder(path: Path, seed: int = 0) -> Path:
    """A model folder with a tokenizer that fits."""
    tokens = path / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tokens)
    text = ChatText(load_tokenizer(tokens))
    save_model(tiny_model(seed, vocabulary=len(text.tokenizer)), path / "model", tokens)
    return path / "model"


HEADS: dict[str, dict[str, float]] = {
    "matrix": {},
    "bias": {},
    "scale": {"scale": 0.3},
    "cap": {"scale": 1.7, "cap": 2.5},
}


def random_head(kind: str) -> tuple[Head, list[torch.Tensor]]:
    """A head of 53 tokens over 8 numbers, and what of it is trained."""
    weight = torch.randn(53, 8, dtype=torch.float64, requires_grad=True)
    if kind in ("matrix", "scale"):
        return Head(weight, **HEADS[kind]), [weight]
    bias = torch.randn(53, dtype=torch.float64, requires_grad=True)
    return Head(weight, bias, **HEADS[kind]), [weight, bias]


def random_rows(count: int, seed: int = 0, vocabulary: int = 97) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts (some shared by neighbours) and completions of uneven length."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    while len(prompts) < count:
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 17))]
        prompts += [prompt] * min(rng.randint(1, 3), count - len(prompts))
    completions = [[rng.randrange(vocabulary) for _ in range(rng.randint(1, 14))] for _ in range(count)]
    return prompts, completions


def plain_logps(model: Any, prompts: list[list[int]], completions: list[list[int]]) -> torch.Tensor:
    """Each row by itself through transformers' own eager path: what every fast path must equal."""
    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    parts = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0].log_softmax(-1)
        at = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
        parts.append(logits[at].gather(1, torch.tensor(completion)[:, None]).squeeze(1))
    model.set_attn_implementation(was)
    return torch.cat(parts)
