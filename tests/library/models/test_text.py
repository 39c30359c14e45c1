"""The text side of a model folder, and the context of a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MambaConfig

from posttrain.models.files.text import context_of, load_text
from posttrain.text.chat import ChatText
from tests.library.models.imported_models import policy_folder

ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 1e4}


def test_the_text_of_a_folder(tmp_path: Path) -> None:
    found = load_text(policy_folder(tmp_path), "2025-01-02")
    assert isinstance(found, ChatText)
    assert (found.today, found.context, found.stops.tokens) == ("2025-01-02", 256, (0, 2))


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (LlamaConfig(max_position_embeddings=128), 128),
        (LlamaConfig(max_position_embeddings=128, rope_parameters={"rope_type": "default", "rope_theta": 1e4}), 128),
        (MambaConfig(), None),
    ],
)
def test_the_context_of_a_config(config: Any, context: int | None) -> None:
    assert context_of(config) == context
    if context is not None:
        config.rope_parameters = ROPE
        assert context_of(config) == 64, "of longrope the pretraining length"
