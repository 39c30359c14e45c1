"""`train_on_rollouts`: a model learns from the samples that an earlier call stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.errors import DataError, ModelError
from posttrain.rewards import Rollout
from tests.library.models.tiny import tiny_folder

PROMPTS = [f"{number}+1" for number in range(8)]
ROLLOUT = {"rounds": 4, "prompts": 4, "group_size": 8, "sampling": {"max_tokens": 6}}


def with_a(rollouts: Sequence[Rollout]) -> list[float]:
    return [float(rollout.text.count("a")) for rollout in rollouts]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def stored(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rollouts of a training with no effect on the weights."""
    output = tmp_path_factory.mktemp("stored")
    settings = {"rollout": ROLLOUT, "optimizer": {"lr": 1e-9}}
    posttrain.train_online(*posttrain.load_model(start), PROMPTS, with_a, settings=settings, output=output)
    return output / "rollouts"


def config(**settings: Any) -> posttrain.OfflineConfig:
    given = {"correction": "truncate", "groups": 4, "epochs": 6, "optimizer": {"lr": 5e-3}, **settings}
    return posttrain.OfflineConfig.preset("grpo", **given)


def score(model: Any, tokenizer: Any) -> float:
    held_out = [f"{number}+2" for number in range(8)]
    return posttrain.evaluate_model(model, tokenizer, held_out, with_a, max_tokens=6).metrics["score"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_without_sampling(start: Path, stored: Path, seed: int) -> None:
    model, tokenizer = posttrain.load_model(start)
    before = score(model, tokenizer)
    trained = posttrain.train_on_rollouts(model, tokenizer, stored, config(seed=seed))
    assert trained.steps == 24
    assert score(model, tokenizer) > before + 0.1


def test_models_of_a_folder_give_the_same_weights(start: Path, stored: Path, tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(start)
    posttrain.train_on_rollouts(model, tokenizer, stored, config())
    models = posttrain.load_models(start, config())
    posttrain.train_on_rollouts(models, None, stored, config(), output=tmp_path)
    other, _ = posttrain.load_model(tmp_path / "model")
    both = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in both)


def test_what_cannot_be_read_is_named(start: Path, stored: Path, tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(start)
    with pytest.raises(ModelError, match="rollouts = 'nope': the folder does not exist"):
        posttrain.train_on_rollouts(model, tokenizer, "nope", config())
    with pytest.raises(DataError, match="no rollouts can be read here"):
        posttrain.train_on_rollouts(model, tokenizer, tmp_path, config())
