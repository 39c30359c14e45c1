"""The model of the examples: a folder of yours, or a random one of 30,000 parameters that trains in seconds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import posttrain
from posttrain.text.bpe import BpeParams, train_tokenizer

TEXTS = [f"{a} + {b} = {a + b}" for a in range(10) for b in range(10)]


def model_and_tokenizer(path: Path | None, seed: int = 0) -> tuple[Any, Any]:
    """The folder's model and tokenizer; without a folder those of a tiny random model."""
    if path is not None:
        model, tokenizer = posttrain.load_model(path)
        return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer
    torch.set_num_threads(1)  # more only wait for each other
    torch.manual_seed(seed)
    with TemporaryDirectory() as folder:
        train_tokenizer(TEXTS, BpeParams(vocabulary=280), Path(folder))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=64, max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), tokenizer
