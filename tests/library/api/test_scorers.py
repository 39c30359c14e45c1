"""Reward models in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.api.model import load_model
from posttrain.api.scorers import load_reward_model, reward_model, score
from posttrain.errors import DataError, ModelError
from tests.library.models.tiny import tiny_folder

ROWS = [{"prompt": "1+1", "completion": "2"}, {"prompt": "1+1", "completion": "3"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def test_a_new_head_starts_at_0(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    scorer = reward_model(model)
    assert score(scorer, tokenizer, ROWS) == [0.0, 0.0] and scorer.runs_in_rows is False
    loaded, again = load_reward_model(folder)
    assert type(loaded) is type(scorer) and len(again) == len(tokenizer)
    with pytest.raises(ModelError, match="it is a reward model already"):
        reward_model(scorer)
    with pytest.raises(ModelError, match="it is a language model, which does not compute scores"):
        score(model, tokenizer, ROWS)


def test_scores(folder: Path) -> None:
    scorer, tokenizer = load_reward_model(folder)
    head: Any = scorer.score
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    first, second = score(scorer, tokenizer, ROWS)
    assert first != second and score(scorer, tokenizer, ROWS[1:]) == pytest.approx([second], rel=1e-5)
    scorer.config.reward_shift = 1.0
    assert score(scorer, tokenizer, ROWS) == pytest.approx([first - 1, second - 1], rel=1e-5)
    with pytest.raises(DataError, match="Rename 'response' to 'completion'"):
        score(scorer, tokenizer, [{"prompt": "a", "response": "b"}])
