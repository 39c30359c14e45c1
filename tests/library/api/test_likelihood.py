"""`evaluate_likelihood`: rows in memory, and models from folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.api.likelihood import _by_scorer, _of_folder, _table, evaluate_likelihood
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.policy import Evaluation
from posttrain.sampling.engines import SampledModel
from tests.library.models.tiny import tiny_folder

PAIRS = [{"prompt": f"{number}+1", "chosen": str(number + 1), "rejected": "no"} for number in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("likelihood"))


def test_a_model_and_its_folder_give_the_same(folder: Path) -> None:
    found = evaluate_likelihood(*posttrain.load_model(folder), PAIRS, "pairs")
    assert isinstance(found, Evaluation) and found.greedy == [] and found.scorer is None
    again = evaluate_likelihood(folder, None, PAIRS, "pairs")
    assert again.metrics == pytest.approx(found.metrics)
    with pytest.raises(ParamsError, match="unknown kind 'chat'"):
        evaluate_likelihood(folder, None, PAIRS, "chat")  # type: ignore[arg-type]


def test_a_reward_model_scores_pairs(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    scorer = posttrain.reward_model(model)
    scorer.score.weight.data.normal_()
    scorer.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = evaluate_likelihood(tmp_path, None, PAIRS, "pairs")
    scores = posttrain.score(scorer, tokenizer, [
        {"prompt": row["prompt"], "completion": row[side]} for row in PAIRS for side in ("chosen", "rejected")
    ])  # fmt: skip
    margins = [good - bad for good, bad in zip(scores[::2], scores[1::2], strict=True)]
    assert found.metrics["margin"] == pytest.approx(sum(margins) / 4, abs=1e-4)
    loaded = _of_folder(tmp_path, EvaluateConfig())
    same = _by_scorer(loaded, _table(PAIRS, "pairs"), "pairs", EvaluateConfig().seed, "here")
    assert isinstance(same, Evaluation) and same.metrics == found.metrics
    with pytest.raises(DataError, match="is a reward model, which cannot compute the likelihood of corpus"):
        _by_scorer(loaded, _table([{"text": "a"}], "corpus"), "corpus", 0, "here")


def test_a_model_of_a_folder_is_frozen(folder: Path) -> None:
    found = _of_folder(folder, EvaluateConfig(date="2025-01-02"))
    assert isinstance(found, SampledModel) and (found.folder, found.text.today) == (folder, "2025-01-02")
    assert not any(part.requires_grad for part in found.policy.parameters())


@pytest.mark.parametrize(
    ("rows", "kind", "columns"),
    [
        (PAIRS, "pairs", {"id", "prompt", "chosen", "rejected", "split"}),
        ([{"text": "abab"}], "corpus", {"id", "text", "split"}),
        (["1+1", [{"role": "user", "content": "1+1"}]], "prompts", {"id", "prompt", "answer", "info", "task", "split"}),
    ],
)
def test_rows_become_a_table(rows: Any, kind: Any, columns: set[str]) -> None:
    found = _table(rows, kind)
    assert columns <= set(found.columns) and found.height == len(rows) and set(found["split"]) == {"heldout"}


def test_a_row_that_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError) as refused:
        _table([*PAIRS, {"prompt": "a"}], "pairs")
    assert refused.value.where == "rows[4]"
