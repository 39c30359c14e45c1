"""What a teacher reads: the student's prompt with a context as its system turn, which may hold values of the row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from posttrain.errors import DataError, excerpt
from posttrain.measure.phases import phase
from posttrain.pipeline.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, row_variables, with_system_prompt
from posttrain.train.tokenize_tables import conversation

_PLACE: Final = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
"""A word in braces, doubled where it stands for itself."""


@phase("load")
def prompts_in_context(
    text: ChatText, context: str, table: Path, demonstrations: Path | None, where: str
) -> dict[tuple[int, ...], list[int]]:
    """Return the teacher's prompt for each prompt of the student: the same with the context as a system turn.

    `{answer}` in the context is the answer of a row of prompts, `{NAME}` the value of a key of its `info`.
    """
    named = [name for _, name in _PLACE.findall(context) if name]
    if demonstrations is not None and named:
        what = f"it has {{{named[0]}}}, which rows of demonstrations do not have"
        raise DataError(what=what, where=where, fix="Set demonstrations: none and own: 1.0, or leave it out")
    asked = [
        (Conversation(row["prompt"], variables=row_variables(row)), _filled(context, row, table, where))
        for row in read_table(table, "prompts").filter(split="train").iter_rows(named=True)
    ]
    if demonstrations is not None:
        asked += [(talk, _filled(context, {}, table, where)) for talk in _questions(demonstrations)]
    plain = text.prompts([talk for talk, _ in asked])
    framed = text.prompts([replace(talk, messages=with_system_prompt(talk.messages, said)) for talk, said in asked])
    found: dict[tuple[int, ...], list[int]] = {}
    for ids, theirs, (talk, said) in zip(plain, framed, asked, strict=True):
        if found.setdefault(tuple(ids), theirs) != theirs:
            asks = excerpt(str(talk.messages[-1]["content"]))
            what = f"rows of {table} ask the same, {asks}, and have different contexts, one of them {excerpt(said)}"
            raise DataError(what=what, where=where, fix="Keep one row of each prompt, or leave values of rows out")
    return found


def _questions(demonstrations: Path) -> Iterator[Conversation]:
    for row in read_table(demonstrations, "chat").filter(split="train").iter_rows(named=True):
        talk = conversation(row, str(demonstrations))
        yield replace(talk, messages=talk.messages[:-1])


def _filled(context: str, row: Mapping[str, Any], table: Path, where: str) -> str:
    """Return the context with the values of a row in its places."""
    known = {"answer": row.get("answer") or None, **json.loads(row.get("info") or "{}")}

    def value(place: re.Match[str]) -> str:
        if place[1]:
            return f"{{{place[1]}}}"
        if isinstance(found := known.get(place[2]), str | int | float):
            return str(found)
        has = ", ".join(name for name, text in known.items() if isinstance(text, str | int | float)) or "none"
        what = f"it has {{{place[2]}}}, and row {row['id']} of {table} has no such text or number. It has {has}"
        fix = f"Add it to the row's `info`, or write {{{{{place[2]}}}}} for the word in braces"
        raise DataError(what=what, where=where, fix=fix)

    return _PLACE.sub(value, context)
