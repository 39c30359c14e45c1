"""Conversations as ids: what is learned, and that text can never pass for markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import DataError
from posttrain.models.store import load_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models import tiny_folder

SPECIALS = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(load_tokenizer(tiny_folder(tmp_path_factory.mktemp("chat"))))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_prompt_and_its_answer_are_the_template_and_end_with_the_stop_token(text: ChatText) -> None:
    one = text.exchange([turn("user", "1+1")], [turn("assistant", "#### 2")])
    whole = text.tokenizer.apply_chat_template([turn("user", "1+1"), turn("assistant", "#### 2")], return_dict=False)
    assert one.prompt + one.completion == whole
    assert one.prompt == text.prompt([turn("user", "1+1")])
    assert one.completion[-1] == text.stop and text.stop not in one.completion[:-1]
    assert text.decode(one.completion) == "#### 2"


def test_a_completion_may_end_with_any_of_the_models_tokens(text: ChatText) -> None:
    other = text.tokenizer.convert_tokens_to_ids("<|pad|>")
    more = ChatText(text.tokenizer, "here", [other, text.stop])
    assert more.stops.tokens == (text.stop, other)
    ids = text.plain(["#### 2"])[0]
    assert [more.decode([*ids, end]) for end in more.stops.tokens] == ["#### 2", "#### 2"]
    assert text.decode([*ids, other]) == "#### 2<|pad|>"
    assert more.stops.decode([*ids, text.stop]) == "#### 2<|end|>", "stop strings see all that was written"


contents = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(SPECIALS)), min_size=1, max_size=5).map("".join)


@settings(max_examples=150, deadline=None)
@given(question=contents, answer=contents)
def test_content_never_becomes_markup_and_comes_back_as_it_was(text: ChatText, question: str, answer: str) -> None:
    special = {text.tokenizer.convert_tokens_to_ids(token) for token in (*SPECIALS, "<|system|>", "<|tool|>")}
    one = text.exchange([turn("user", question)], [turn("assistant", answer)])
    assert sum(token in special for token in one.prompt) == 3, "user, end, assistant"
    assert [token for token in one.completion if token in special] == [text.stop]
    assert text.decode(one.completion) == answer


def test_a_template_without_a_stop_token_is_refused(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(DataError, match="no stop token"):
        ChatText(tokenizer).exchange([turn("user", "a")], [turn("assistant", "b")])


def test_a_template_that_rewrites_the_past_is_refused(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    with pytest.raises(DataError, match="changes earlier text"):
        ChatText(tokenizer).exchange([turn("user", "a")], [turn("assistant", "b")])


def test_a_failing_template_is_an_error_of_the_data(text: ChatText) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = "{{ raise_exception('no system turns') }}"
    with pytest.raises(DataError, match="no system turns"):
        ChatText(tokenizer).prompt([turn("system", "a")])


def test_a_tokenizer_without_a_template_is_refused(text: ChatText, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(text.tokenizer.name_or_path)
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="no chat template"):
        ChatText(tokenizer)
