"""`train_model`: rows, settings and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import posttrain
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api import rows as rows_module
from posttrain.api.train import _check_heldout, _check_kind, _config, _examples, _given, _rows, check_table, train_model
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.store import load_tokenizer, scorer_of
from posttrain.rollout import TokenRow
from posttrain.supervised.sft import SftConfig
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.examples import Examples
from tests.library.models.tiny import TEXTS, tiny_folder, tiny_model, trained_texts

ROWS = [{"prompt": f"{number}+1", "completion": str(number + 1)} for number in range(4)]
NUMBERS = {"epochs": 2.0, "batch_size": 3, "evaluate_every": 4}
GIVEN = {"algorithm": "sft", "settings": None, "optimizer": {"lr": 1e-2}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


class Stored(Examples):
    """Examples of a table, which are not looked at."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("nobody reads them")


def test_the_metrics_of_each_step_come_back(tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(tiny_folder(tmp_path))
    model.config.reward_shift = 1.0
    seen: list[int] = []
    trained = train_model(
        model, tokenizer, ROWS, batch_size=2, optimizer={"lr": 1e-2}, on_step=lambda step, _: seen.append(step),
        heldout=ROWS[:2], evaluate_every=1,
    )  # fmt: skip
    assert isinstance(trained, posttrain.Trained) and trained.steps == 2 and len(trained) == 3 and seen == [0, 1]
    assert "heldout_loss" in trained[-1] and not hasattr(model.config, "reward_shift")


def test_the_config_of_the_arguments_or_the_given_one() -> None:
    made = _config(None, GIVEN, NUMBERS, {"seed": 5}, watched=True)
    assert isinstance(made, SftConfig)
    assert (made.epochs, made.batch, made.seed, made.optimizer.lr) == (2.0, 3, 5, 1e-2)
    own = SftConfig()
    usual = {"epochs": 1.0, "batch_size": 16, "evaluate_every": 50}
    assert _config(own, {**GIVEN, "optimizer": None}, usual, {"seed": 0}, watched=False) is own
    with pytest.raises(ParamsError, match="optimizer would be ignored"):
        _config(own, GIVEN, usual, {"seed": 0}, watched=False)


def test_the_module_of_rows() -> None:
    assert _rows() is rows_module


def test_rows_are_read_and_examples_stay(text: ChatText) -> None:
    read = _examples(text, ROWS[:1], SftConfig(), "rows")
    assert len(read) == 1 and trained_texts(text, read[0].rows[0])[0].startswith("1")
    examples = [Example([TokenRow([1], [2])]), Example([TokenRow([1], [3])])]
    assert _examples(text, examples, SftConfig(), "rows") == examples
    stored = Stored.__new__(Stored)
    found = _examples(text, stored, SftConfig(), "rows")
    assert id(found) == id(stored)
    with pytest.raises(DataError, match="there are no rows"):
        _examples(text, [], SftConfig(), "rows")


def test_what_identifies_the_checkpoints_of_an_output() -> None:
    example = Example([TokenRow([1], [2, 3], [True, False])], {"label": [1.0]})
    found = _given(SftConfig(), [example], "reference")
    assert found == [
        "[([([1], [2, 3], [True, False])], {'label': [1.0]})]", LikelihoodObjective(LikelihoodConfig()), "reference",
    ]  # fmt: skip


def test_a_watch_and_its_rows_belong_together() -> None:
    watched = SftConfig(watch={"every": 2})  # type: ignore[arg-type]
    _check_heldout(watched, ROWS[:2], None)
    with pytest.raises(DataError, match="watch measures held-out rows, but none are given"):
        _check_heldout(watched, [], None)
    check_table(None, None)
    rewarded: Any = SimpleNamespace(reward={"format": 1.0})
    with pytest.raises(DataError, match=r"watch\.reward samples the prompts of held-out rows"):
        check_table(rewarded, None)


def test_each_kind_of_model_has_its_training() -> None:
    language, scorer = tiny_model(), scorer_of(tiny_model(), "test")
    _check_kind(SftConfig(), language)
    _check_kind(posttrain.RewardTraining(), scorer)
    for config, model, what in (
        (SftConfig(), scorer, "sft trains language models, and this is not one"),
        (posttrain.RewardTraining(), language, "reward trains reward models, and this is not one"),
        (posttrain.PreferenceTraining.preset("dpo"), scorer, "dpo trains language models, and this is not one"),
    ):
        with pytest.raises(ParamsError, match=what):
            _check_kind(config, model)
