"""A reward model in Python: a copy of a language model with a head, trained on pairs, saved, loaded and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import posttrain
from posttrain.errors import DataError, ModelError, ParamsError
from tests.library.models.tiny import tiny_folder

WORDS = ["ab", "ba", "bb", "aab", "bab", "abb", "bba", "baa"]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Any, Any]:
    return posttrain.load_model(tiny_folder(tmp_path / "model"))


def pairs(words: list[str]) -> list[dict[str, str]]:
    """Comparisons in which the answer `a` is better."""
    return [{"prompt": word, "chosen": "a", "rejected": "b"} for word in words]


def accuracy(scorer: Any, tokenizer: Any, words: list[str]) -> float:
    better, worse = (
        posttrain.score(scorer, tokenizer, [{"prompt": one["prompt"], "completion": one[side]} for one in pairs(words)])
        for side in ("chosen", "rejected")
    )
    return sum(a > b for a, b in zip(better, worse, strict=True)) / len(words)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_what_it_was_not_shown(model: tuple[Any, Any], seed: int) -> None:
    language, tokenizer = model
    before = [part.clone() for part in language.parameters()]
    scorer = posttrain.reward_model(language)
    assert accuracy(scorer, tokenizer, WORDS) == 0, "all scores are 0 at the start"
    log = posttrain.train_model(
        scorer, tokenizer, pairs(WORDS[:5]), "reward", epochs=20, batch_size=5, seed=seed, optimizer={"lr": 3e-3}
    )
    assert log[-1]["loss"] < log[0]["loss"]
    assert accuracy(scorer, tokenizer, WORDS[5:]) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, language.parameters(), strict=True))


def test_a_saved_one_gives_the_same_scores(model: tuple[Any, Any], tmp_path: Path) -> None:
    scorer = posttrain.reward_model(model[0])
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "ab", "completion": "aaa"}]
    posttrain.train_model(
        scorer, model[1], pairs(WORDS), "reward", settings={"centring": 0.01}, output=tmp_path / "out", batch_size=4
    )
    found = posttrain.score(scorer, model[1], rows)
    assert found[0] != found[1]
    again = posttrain.load_reward_model(tmp_path / "out/model")
    assert posttrain.score(*again, rows) == found
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out/model")
    assert theirs.config.num_labels == 1


def test_labels_train_it_too(model: tuple[Any, Any]) -> None:
    scorer = posttrain.reward_model(model[0])
    rows = [{"prompt": word, "completion": end, "label": end == "a"} for word in WORDS for end in "ab"]
    posttrain.train_model(
        scorer, model[1], rows, "reward", settings={"compare": "labels"}, epochs=20, batch_size=16,
        optimizer={"lr": 3e-3},
    )  # fmt: skip
    assert accuracy(scorer, model[1], WORDS) == 1


def test_wrong_models_and_rows_are_named(model: tuple[Any, Any]) -> None:
    scorer = posttrain.reward_model(model[0])
    with pytest.raises(ParamsError, match=r"reward trains reward models.*posttrain\.reward_model"):
        posttrain.train_model(*model, pairs(WORDS), "reward")
    with pytest.raises(ParamsError, match="dpo trains language models, and this is not one"):
        posttrain.train_model(scorer, model[1], pairs(WORDS), "dpo")
    with pytest.raises(ModelError, match="it is a language model, which does not compute scores"):
        posttrain.score(*model, [{"prompt": "a", "completion": "b"}])
    with pytest.raises(ModelError, match="it is a reward model already"):
        posttrain.reward_model(scorer)
    with pytest.raises(DataError, match=r"rows\[1\]"):
        posttrain.score(scorer, model[1], [{"prompt": "a", "completion": "b"}, {"prompt": "a"}])
    with pytest.raises(ParamsError, match="compare"):
        posttrain.train_model(scorer, model[1], pairs(WORDS), "reward", settings={"compare": "ranks"})


def test_the_mean_of_demonstrations_is_subtracted_until_it_is_trained_again(model: tuple[Any, Any]) -> None:
    scorer, rows = posttrain.reward_model(model[0]), [{"prompt": "a", "completion": "b"}]
    posttrain.train_model(scorer, model[1], pairs(WORDS), "reward", epochs=2)
    (before,) = posttrain.score(scorer, model[1], rows)
    scorer.config.reward_shift = 0.5
    assert posttrain.score(scorer, model[1], rows) == pytest.approx([before - 0.5])
    posttrain.train_model(scorer, model[1], pairs(WORDS), "reward")
    assert not hasattr(scorer.config, "reward_shift")
    scorer.config.scores_whole_text = True
    with pytest.raises(ModelError, match="it scores whole conversations"):
        posttrain.score(scorer, model[1], rows)
