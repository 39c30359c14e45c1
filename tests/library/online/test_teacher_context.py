"""What a teacher reads in place of each prompt."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.online.teacher_context import prompts_in_context
from posttrain.rollout import Prompt
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from tests.library.models.tiny import tiny_folder

WHERE = "distill.runs.main.context"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(load_tokenizer(tiny_folder(tmp_path_factory.mktemp("tiny"))))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def prompts(*rows: tuple[str, str, dict[str, Any]]) -> list[Prompt]:
    """Prompts of (question, answer, info)."""
    return [
        Prompt(f"p{nth}", [turn("user", question)], (), answer, info)
        for nth, (question, answer, info) in enumerate(rows)
    ]


def decoded(text: ChatText, seen: dict[tuple[int, ...], list[int]]) -> dict[str, str]:
    return {text.tokenizer.decode(plain): text.tokenizer.decode(framed) for plain, framed in seen.items()}


def framed(text: ChatText, question: str, context: str) -> dict[str, str]:
    plain = text.prompt([turn("user", question)])
    theirs = text.prompt([turn("system", context), turn("user", question)])
    return {text.tokenizer.decode(plain): text.tokenizer.decode(theirs)}


def test_each_row_gives_the_context_what_it_knows(text: ChatText) -> None:
    asked = prompts(("2+3", "5", {"hint": "add", "steps": 1}), ("4+5", "9", {"hint": "sum", "steps": 2}))
    seen = prompts_in_context(text, "{hint} in {steps}: {answer}, as {{json}} {}", asked, [], WHERE)
    expected = framed(text, "2+3", "add in 1: 5, as {json} {}") | framed(text, "4+5", "sum in 2: 9, as {json} {}")
    assert decoded(text, seen) == expected


def test_a_plain_context_is_that_of_demonstrations_too(text: ChatText) -> None:
    asked, questions = prompts(("2+3", "", {})), [Conversation([turn("user", "7+1")])]
    seen = prompts_in_context(text, "Be brief.", asked, questions, WHERE)
    assert decoded(text, seen) == framed(text, "2+3", "Be brief.") | framed(text, "7+1", "Be brief.")
    with pytest.raises(DataError, match=r"\{answer\}, but rows of demonstrations have no such field"):
        prompts_in_context(text, "It is {answer}.", asked, questions, WHERE)


def test_two_contexts_of_one_prompt_are_refused(text: ChatText) -> None:
    asked = prompts(("2+3", "5", {}), ("Guess.", "1", {}), ("Guess.", "2", {}))
    assert len(prompts_in_context(text, "Be brief.", asked, [], WHERE)) == 2
    with pytest.raises(DataError, match=r"have the same prompt, 'Guess\.', but different contexts"):
        prompts_in_context(text, "It is {answer}.", asked, [], WHERE)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("2+3", "5", {"hint": "add"}), r"it has \{hnt\}, but row p0 of a.parquet .* It has answer, hint"),
        (("2+3", "", {"hnt": ["add"]}), r"no such text or number. It has none"),
    ],
)
def test_what_a_row_lacks_is_said(row: tuple[str, str, dict[str, Any]], says: str, text: ChatText) -> None:
    with pytest.raises(DataError, match=says) as raised:
        prompts_in_context(text, "It is {hnt}.", prompts(row), [], WHERE, source="a.parquet")
    assert WHERE in str(raised.value)
