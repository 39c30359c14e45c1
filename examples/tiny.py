"""The model of the examples: a folder of yours, or a random one of 30,000 parameters that trains in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import posttrain

CHAT = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXTS = [f"{a} + {b} = {a + b}" for a in range(10) for b in range(10)]


def model_and_tokenizer(path: Path | None, seed: int = 0) -> tuple[Any, Any]:
    """The folder's model and tokenizer; without a folder those of a tiny random model."""
    if path is not None:
        model, tokenizer = posttrain.load_model(path)
        return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer
    torch.set_num_threads(1)  # more only wait for each other
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=64, max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), tokenizer


def tiny_tokenizer() -> Any:
    """Train a tokenizer of bytes and a few pairs on TEXTS."""
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=bytes_of.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    made.chat_template = CHAT
    return made
