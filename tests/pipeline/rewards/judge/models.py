"""A judge model without training: whatever it is asked, it writes one text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from posttrain.models.files.store import load_tokenizer, new_model, save_model
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS


def parrot_folder(path: Path, text: str) -> Path:
    """A model whose next token follows from the last one: one-hot embeddings, layers that add nothing, a table.

    The tokens of the text must differ from each other and from the one that opens an answer.
    """
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), path / "tokens")
    chat = ChatText(load_tokenizer(path / "tokens"))
    (row,) = chat.exchanges([([{"role": "user", "content": "?"}], [{"role": "assistant", "content": text}])])
    chain = [row.prompt[-1], *row.rest]
    assert len(set(chain)) == len(chain)
    size = len(chat.tokenizer)
    model = new_model(
        Qwen3Config(
            vocab_size=size, hidden_size=size, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
            head_dim=8, intermediate_size=8, max_position_embeddings=8192, tie_word_embeddings=False,
        ),
        seed=0,
    )  # fmt: skip
    with torch.no_grad():
        layer = model.model.layers[0]
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj, model.lm_head):
            part.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        for last, following in pairwise(chain):
            model.lm_head.weight[following, last] = 10.0
    save_model(model, path / "model", path / "tokens")
    return path / "model"
