"""The teacher's prompts: the student's prompt after a system turn with the context, which may use the row's values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from posttrain.errors import DataError, excerpt
from posttrain.measure.phases import phase
from posttrain.rollout import Prompt
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, with_system_prompt

_PLACE: Final = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
"""A word in braces. Doubled braces stand for themselves."""


@phase("load")
def prompts_in_context(
    text: ChatText, context: str, prompts: Sequence[Prompt], questions: Sequence[Conversation], where: str, *,
    source: str = "prompts",
) -> dict[tuple[int, ...], list[int]]:  # fmt: skip
    """Return the teacher's prompt for each student prompt: the same prompt after a system turn with the context.

    In the context, `{answer}` is the answer of a prompt, and `{NAME}` a value of its `info`. `questions`: the prompts
    of demonstrations. `source`: the name of the prompts in messages.
    """
    named = [name for _, name in _PLACE.findall(context) if name]
    if questions and named:
        what = f"it has {{{named[0]}}}, but rows of demonstrations have no such field"
        raise DataError(what=what, where=where, fix="Train only on the student's samples (own: 1.0), or remove it")
    asked = [
        (Conversation(prompt.messages, variables=prompt.variables), _filled(context, prompt, source, where))
        for prompt in prompts
    ]
    asked += [(talk, _filled(context, None, source, where)) for talk in questions]
    plain = text.prompts([talk for talk, _ in asked])
    framed = text.prompts([replace(talk, messages=with_system_prompt(talk.messages, said)) for talk, said in asked])
    prompts_of: dict[tuple[int, ...], list[int]] = {}
    for ids, theirs, (talk, said) in zip(plain, framed, asked, strict=True):
        if prompts_of.setdefault(tuple(ids), theirs) != theirs:
            asks = excerpt(str(talk.messages[-1]["content"]))
            what = f"rows of {source} have the same prompt, {asks}, but different contexts, one of them {excerpt(said)}"
            raise DataError(
                what=what, where=where, fix="Keep one row of each prompt, or use no row values in the context"
            )
    return prompts_of


def _filled(context: str, prompt: Prompt | None, source: str, where: str) -> str:
    """Return the context with a prompt's values inserted."""
    known = {} if prompt is None else {"answer": prompt.answer or None, **prompt.info}

    def value(place: re.Match[str]) -> str:
        if place[1]:
            return f"{{{place[1]}}}"
        if isinstance(known_value := known.get(place[2]), str | int | float):
            return str(known_value)
        has = ", ".join(name for name, text in known.items() if isinstance(text, str | int | float)) or "none"
        row = "" if prompt is None else f"row {prompt.id} of "
        what = f"it has {{{place[2]}}}, but {row}{source} has no such text or number. It has {has}"
        fix = f"Add it to the row's `info`, or write {{{{{place[2]}}}}} for the word in braces"
        raise DataError(what=what, where=where, fix=fix)

    return _PLACE.sub(value, context)
