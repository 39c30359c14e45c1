"""Prompts that a call receives."""

from __future__ import annotations

import pytest

from posttrain.api.given import _task, prompts_given
from posttrain.data.turns import RowError
from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.rollout import Prompt
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS

ASKED = [{"role": "user", "content": "1+1"}]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def test_prompts_get_their_tokens(text: ChatText) -> None:
    found = prompts_given(text, ["1+1", ASKED, {"prompt": "1+1", "answer": "2", "info": {"level": 3}}])
    assert [list(one.messages) for one in found] == [ASKED] * 3
    assert [one.ids for one in found] == [text.prompt(ASKED)] * 3
    assert (found[2].answer, found[2].info, found[0].task) == ("2", {"level": 3}, "")
    given = [Prompt("p", ASKED, [1])]
    assert prompts_given(text, given) == given


def test_what_is_no_prompt(text: ChatText) -> None:
    with pytest.raises(DataError, match="this is one string, not a list"):
        prompts_given(text, "1+1")
    with pytest.raises(DataError, match="there are no prompts"):
        prompts_given(text, [])
    with pytest.raises(DataError) as refused:
        prompts_given(text, ["1+1", {"question": "1+1"}])
    assert refused.value.where == "prompts[1]" and "question" in str(refused.value)


def test_the_task_of_a_row() -> None:
    assert _task({}) == "" and _task({"task": None}) == ""
    with pytest.raises(RowError, match="'task' is 3; give the name of a task"):
        _task({"task": 3})
