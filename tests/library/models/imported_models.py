"""Tiny models as other people have them: each with a vocabulary, a chat template and end tokens of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.library.models.tiny import TEXTS

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Writes a line break after the end token, as Qwen's does."""
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
PLAIN = "{% for one in messages %}{{ '<s>' + one['role'] + ': ' + one['content'] + '</s>' }}{% endfor %}"
"""Opens no answer, which a model that only reads does not need."""
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip


def tokenizer_files(path: Path, vocabulary: int, specials: list[str], template: str | None, **tokens: str) -> Any:
    """A byte-level BPE, saved by transformers; `tokens` are its eos_token and the like."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **tokens)
    tokenizer.add_special_tokens({"additional_special_tokens": specials})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return tokenizer


def policy_folder(
    path: Path, template: str | None = CHATML, vocabulary: int = 330, ends: Sequence[int] = (0, 2), **over: Any
) -> Path:
    """A Llama whose turns end with <|im_end|>, though its end token is <|endoftext|>: both are in generation_config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = tokenizer_files(path, vocabulary, specials, template, eos_token="<|endoftext|>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=0, **{**SHAPE, **over}))
    model.generation_config.eos_token_id = list(ends)
    model.save_pretrained(path)
    return path


def scorer_folder(path: Path, template: str | None = INST, pad_token_id: int | None = None, **over: Any) -> Path:
    """A Mistral with a scalar head, another vocabulary and another template."""
    from transformers import MistralConfig, MistralForSequenceClassification

    specials = ["<s>", "</s>"]
    tokenizer = tokenizer_files(path, 410, specials, template, bos_token="<s>", eos_token="</s>")
    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=len(tokenizer), num_labels=1, eos_token_id=1, bos_token_id=0, pad_token_id=pad_token_id,
        sliding_window=None, **{**SHAPE, **over},
    )  # fmt: skip
    MistralForSequenceClassification(config).save_pretrained(path)
    return path


def edited(file: Path, **over: object) -> None:
    """Change keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **over}), encoding="utf-8")
