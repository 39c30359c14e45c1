"""Train a byte-level BPE tokenizer on the corpus, for models from scratch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from posttrain.settings.params import Params

PADDING = "<|pad|>"
END_OF_TURN = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""One token per role, so that a turn costs two tokens besides its text."""


class BpeParams(Params):
    """The tokenizer of a model from scratch."""

    vocabulary: int = Field(
        480, ge=260, le=200_000, description="number of tokens, including the 256 bytes and special tokens"
    )


def train_tokenizer(texts: Iterable[str], params: BpeParams, path: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json of a byte-level BPE in which every digit is a separate token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocabulary,
        special_tokens=[PADDING, END_OF_TURN, *(f"<|{role}|>" for role in ROLES)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": PADDING,
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
