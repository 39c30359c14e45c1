"""What a teacher reads in place of each prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.data.columns import Kind, from_rows
from posttrain.errors import DataError
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.runs.teacher_context import prompts_in_context
from posttrain.pipeline.tables.store import write_table
from posttrain.text.chat import ChatText
from tests.models.tiny import tiny_folder

WHERE = "distill.runs.main.context"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(load_tokenizer(tiny_folder(tmp_path_factory.mktemp("tiny"))))


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def write(rows: list[dict[str, Any]], kind: Kind, folder: Path) -> Path:
    write_table(from_rows(rows, kind), folder / f"{kind}.parquet", kind)
    return folder / f"{kind}.parquet"


def prompts(folder: Path, *rows: tuple[str, str, dict[str, Any]]) -> Path:
    """A table of (question, answer, info)."""
    known = [
        {"split": "train", "problem": f"{nth}", "prompt": [turn("user", question)], "answer": answer,
         "info": json.dumps(info), "task": ""}
        for nth, (question, answer, info) in enumerate(rows)
    ]  # fmt: skip
    return write(known, "prompts", folder)


def decoded(text: ChatText, seen: dict[tuple[int, ...], list[int]]) -> dict[str, str]:
    return {text.tokenizer.decode(plain): text.tokenizer.decode(framed) for plain, framed in seen.items()}


def framed(text: ChatText, question: str, context: str) -> dict[str, str]:
    plain = text.prompt([turn("user", question)])
    theirs = text.prompt([turn("system", context), turn("user", question)])
    return {text.tokenizer.decode(plain): text.tokenizer.decode(theirs)}


def test_each_row_gives_the_context_what_it_knows(text: ChatText, tmp_path: Path) -> None:
    table = prompts(tmp_path, ("2+3", "5", {"hint": "add", "steps": 1}), ("4+5", "9", {"hint": "sum", "steps": 2}))
    seen = prompts_in_context(text, "{hint} in {steps}: {answer}, as {{json}} {}", table, None, WHERE)
    expected = framed(text, "2+3", "add in 1: 5, as {json} {}") | framed(text, "4+5", "sum in 2: 9, as {json} {}")
    assert decoded(text, seen) == expected


def test_a_plain_context_is_that_of_demonstrations_too(text: ChatText, tmp_path: Path) -> None:
    table = prompts(tmp_path, ("2+3", "", {}))
    talk = [turn("user", "7+1"), turn("assistant", "8")]
    chat = write([{"split": "train", "problem": "a", "messages": talk}], "chat", tmp_path)
    seen = prompts_in_context(text, "Be brief.", table, chat, WHERE)
    assert decoded(text, seen) == framed(text, "2+3", "Be brief.") | framed(text, "7+1", "Be brief.")
    with pytest.raises(DataError, match=r"\{answer\}, which rows of demonstrations do not have"):
        prompts_in_context(text, "It is {answer}.", table, chat, WHERE)


def test_two_contexts_of_one_prompt_are_refused(text: ChatText, tmp_path: Path) -> None:
    table = prompts(tmp_path, ("2+3", "5", {}), ("Guess.", "1", {}), ("Guess.", "2", {}))
    assert len(prompts_in_context(text, "Be brief.", table, None, WHERE)) == 2
    with pytest.raises(DataError, match=r"ask the same, 'Guess\.', and have different contexts"):
        prompts_in_context(text, "It is {answer}.", table, None, WHERE)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("2+3", "5", {"hint": "add"}), r"it has \{hnt\}, and row \w+ of .* It has answer, hint"),
        (("2+3", "", {"hnt": ["add"]}), r"no such text or number. It has none"),
    ],
)
def test_what_a_row_lacks_is_said(
    row: tuple[str, str, dict[str, Any]], says: str, text: ChatText, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=says) as raised:
        prompts_in_context(text, "It is {hnt}.", prompts(tmp_path, row), None, WHERE)
    assert WHERE in str(raised.value)
