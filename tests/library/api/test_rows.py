"""Rows in memory as examples, and the settings of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api.rows import config_of, examples_of, questions_of
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.store import load_tokenizer
from posttrain.supervised.preference import PreferenceTraining
from posttrain.supervised.reward import RewardTraining
from posttrain.supervised.sft import SftConfig
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from tests.library.models.tiny import TEXTS, trained_texts

NUMBERS = {"epochs": 2, "batch_size": 3, "evaluate_every": 4}
SFT = LikelihoodObjective(LikelihoodConfig())
DPO = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
PAIR = {"prompt": "1+1", "chosen": "2", "rejected": "3"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def config(algorithm: str, settings: Any = None, *, watched: bool = False) -> Any:
    return config_of(algorithm, settings, {"lr": 0.5}, NUMBERS, {}, watched=watched)


def test_settings_of_a_call() -> None:
    sft = config("sft", {"aggregation": "sequence_mean"}, watched=True)
    assert isinstance(sft, SftConfig) and sft.watch is not None and sft.watch.every == 4
    assert (sft.epochs, sft.batch, sft.objective.aggregation, sft.optimizer.lr) == (2.0, 3, "sequence_mean", 0.5)
    reward = config("reward", {"margin": 1.0})
    assert isinstance(reward, RewardTraining) and reward.objective.margin == 1.0
    dpo = config("dpo", {"nll": 0.5})
    assert isinstance(dpo, PreferenceTraining) and dpo.nll == 0.5
    with pytest.raises(ParamsError, match="a call only compares the answers of one row"):
        config("reward", {"compare": "ranks"})
    with pytest.raises(ParamsError, match="'grpo' trains on the policy's samples"):
        config("grpo")


def test_demonstrations(text: ChatText) -> None:
    (one,) = examples_of(text, [{"prompt": "1+1", "completion": "2"}], SFT, "rows")
    assert len(one.rows) == 1 and "2" in trained_texts(text, one.rows[0])[0]
    talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}] * 2
    (two,) = examples_of(text, [{"messages": talk}], SFT, "rows")
    assert sum(len(trained_texts(text, row)) for row in two.rows) == 2


def test_pairs_and_labels(text: ChatText) -> None:
    (pair,) = examples_of(text, [PAIR], DPO, "rows")
    assert len(pair.rows) == 2 and pair.columns == {"side": [1.0, -1.0]}
    margin = RewardObjective(RewardConfig(margins="column"))
    (wide,) = examples_of(text, [{**PAIR, "margin": 0.5}], margin, "rows")
    assert wide.columns == {"side": [1.0, -1.0], "margin": [0.5, 0.5]}
    kto = PreferenceObjective(PREFERENCE_ROWS["kto"].settings())
    labelled = [{"prompt": "1+1", "completion": "2", "label": label} for label in (True, False)]
    assert [one.columns["label"] for one in examples_of(text, labelled, kto, "rows")] == [[1.0], [-1.0]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (3, r"it is a number, not a row|not a row"),
        ({"question": "a", "response": "b"}, "Rename 'question' to 'prompt'"),
        ({"messages": [{"role": "user", "content": "a"}]}, "it does not end with an assistant turn"),
        (Example([]), "it is an example, but other rows are not"),
    ],
)
def test_rows_that_are_refused(row: Any, message: str, text: ChatText) -> None:
    with pytest.raises(DataError, match=message):
        examples_of(text, [row], SFT, "rows")


def test_questions() -> None:
    (talk,) = questions_of([{"prompt": "1+1", "completion": "2"}])
    assert [dict(turn) for turn in talk.messages] == [{"role": "user", "content": "1+1"}]
    with pytest.raises(DataError, match="these rows have tokens, but no turns"):
        questions_of([Example([])])
    with pytest.raises(DataError):
        questions_of([{"x": 1}])
