"""A chat template at work: what it writes of a conversation, and whether it writes all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.errors import DataError
from posttrain.measure.record import note
from posttrain.text.templates import Asked, Rendered, RenderError, Template

Message = Mapping[str, Any]
"""`role` and `content`, and in conversations with tools what templates know beside them, e.g. `tool_calls`."""
Tools = Sequence[Mapping[str, Any]] | None

_MARK = "\ue000{}\ue001"
"""A placeholder from Unicode's private use area that stands for content while the template is rendered."""
_SPECIAL = "\ue005{}\ue001"
_HIDDEN = re.compile("\ue005([0-9]{1,9})\ue001")
"""The same for a special token that a content holds, by its number."""
_NAME = "\ue004{}\ue001"
"""The same for the name of a tool."""


@dataclass(frozen=True)
class Conversation:
    """Turns, the tools that they may call, and the name of the row in errors."""

    messages: Sequence[Message]
    tools: Tools = None
    name: str = ""


@dataclass(frozen=True)
class Written:
    """A rendered conversation, what in its contents looks like a special token, and its `{% generation %}` blocks."""

    text: str
    spans: Sequence[tuple[int, int]] = ()
    blocks: Sequence[tuple[int, int]] = field(default=(), kw_only=True)


class ChatTemplate:
    """A chat template and the special tokens that it writes, which no content may pass for."""

    def __init__(self, template: Template, specials: Sequence[str], where: str) -> None:
        self._template, self._specials, self._where = template, specials, where
        self._hidden_texts = [*specials, _SPECIAL[0]]
        self._pattern = re.compile("|".join(map(re.escape, self._hidden_texts)))
        self._checked: set[Any] = set()

    def write(self, asked: Sequence[Asked]) -> list[Written]:
        """The template's text of each conversation, and where contents hold what looks like a special token."""
        hidden = [one._replace(messages=[self._hidden(turn) for turn in one.messages]) for one in asked]
        return [self._filled(found) for found in self._render(hidden, asked)]

    def _hidden(self, turn: Message) -> Message:
        """The turn with a placeholder for each special token in its content, so that the template treats it as text."""
        content = turn["content"]
        if not any(special in content for special in self._hidden_texts):
            return turn
        return {**turn, "content": self._pattern.sub(self._placeholder, content)}

    def _placeholder(self, found: re.Match[str]) -> str:
        return _SPECIAL.format(self._hidden_texts.index(found[0]))

    def _filled(self, found: Rendered) -> Written:
        """The rendered text with the hidden tokens as text again, and their places."""
        held = [one for one in _HIDDEN.finditer(found.text) if int(one[1]) < len(self._hidden_texts)]
        if not held:
            return Written(found.text, blocks=found.blocks)
        text, spans, at = "", [], 0
        edges = [edge for block in found.blocks for edge in block]
        moved = list(edges)
        for one in held:
            special = self._hidden_texts[int(one[1])]
            text += found.text[at : one.start()]
            spans.append((len(text), len(text) + len(special)))
            text += special
            at = one.end()
            longer = len(special) - len(one[0])
            moved = [new + longer * (old > one.start()) for new, old in zip(moved, edges, strict=True)]
        return Written(text + found.text[at:], spans, blocks=list(zip(moved[::2], moved[1::2], strict=True)))

    def _render(self, asked: Sequence[Asked], shown: Sequence[Asked]) -> list[Rendered]:
        """The conversations by the template; an error shows the one in the same place of `shown`."""
        found: list[Rendered] = []
        try:
            for one in self._template.render(asked):
                found.append(one)
                if one.dated:
                    note(date=self._template.date)
        except RenderError as error:
            fix = "Change the conversation, or the template"
            raise self.refusal("fails on", shown[len(found)].messages, fix, f": {error}") from error
        return found

    def check(self, talk: Conversation) -> None:
        """Refuse a template that loses or moves turns or tools, or opens no answer; once for each form of talk."""
        self._check_tool_use(talk)
        messages, form = talk.messages, ("opened", *_form(talk))
        if form in self._checked:
            return
        marked, tools = _named(_marked(messages)), _named_tools(talk.tools)
        frame, places = self._frame(talk, marked, tools)
        if len(messages) > 1:
            before = Asked(marked[:-1], False, tools), Asked(marked[:-1], True, tools)
            closed, opened = (one.text for one in self._render(before, [Asked(messages, False)] * 2))
            header = frame[len(closed) : places[len(messages) - 1]]
            if closed == opened and frame.startswith(closed) and header.strip():
                fix = f"Let it write {header!r} after the last turn where add_generation_prompt is true"
                raise self.refusal("ignores add_generation_prompt and so opens no answer to", messages[:-1], fix)
        self._checked.add(form)

    def check_written(self, talk: Conversation) -> None:
        """The same for a conversation that is only read: no answer has to be opened."""
        self._check_tool_use(talk)
        if _form(talk) not in self._checked:
            self._frame(talk, _named(_marked(talk.messages)), _named_tools(talk.tools))
            self._checked.add(_form(talk))

    def _frame(self, talk: Conversation, marked: Sequence[Message], tools: Tools) -> tuple[str, dict[int, int]]:
        """The text with marks in place of contents and names, and where those of each turn begin."""
        messages = talk.messages
        frame = self._render([Asked(marked, False, tools)], [Asked(messages, False)])[0].text
        places = dict(self._places(frame, messages))
        fix = "Use a template that writes them, or remove them from the data"
        for nth, name in _names(marked):
            if name not in frame:
                raise self.refusal(f"leaves out the tool calls of turn {nth + 1} of", messages, fix)
            places.setdefault(nth, frame.find(name))
        if tools and not all(_NAME.format(f"tool {nth}") in frame for nth in range(len(tools))):
            raise self.refusal("leaves out the tools of", messages, fix)
        return frame, places

    def _check_tool_use(self, talk: Conversation) -> None:
        """Refuse markup in tool use, which the template mixes with markup of its own."""
        used = [{**turn, "content": ""} for turn in talk.messages if len(turn) > 2]
        if not used and not talk.tools:
            return
        text = json.dumps([used, talk.tools], ensure_ascii=False)
        forged = next((special for special in self._specials if special in text), None)
        if forged is not None:
            what = f"the tool use of a conversation holds {forged!r}, which ends or opens turns"
            where = ", ".join(filter(None, (self._where, talk.name)))
            raise DataError(what=what, where=where, fix="Remove it from the tools and the fields of the turns")

    def _places(self, frame: str, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """The number of each turn that says something, and where its mark lies in what the template wrote."""
        said = [i for i, turn in enumerate(messages) if _says(turn)]
        places = [frame.find(_MARK.format(i)) for i in said]
        fix = "Use a template that takes these turns, or change the conversation"
        if -1 in places:
            lost = said[places.index(-1)]
            raise self.refusal(f"leaves out turn {lost + 1} ({messages[lost]['role']}) of", messages, fix)
        if places != sorted(places):
            raise self.refusal("changes the order of", messages, fix)
        return list(zip(said, places, strict=True))

    def refusal(self, what: str, messages: Sequence[Message], fix: str, why: str = "", name: str = "") -> DataError:
        """The error for what the template does to a conversation, which is shown by its roles and its beginning."""
        roles = ", ".join(turn["role"] for turn in messages) or "no"
        begins = f", which begins {messages[0]['content'][:60]!r}" if messages else ""
        where = ", ".join(filter(None, (self._where, name)))
        return DataError(
            what=f"the chat template {what} a conversation of {roles} turns{begins}{why}", where=where, fix=fix
        )


def _form(talk: Conversation) -> tuple[Any, ...]:
    """What decides how a template treats a conversation."""
    turns = ((turn["role"], "tool_calls" in turn, bool(turn["content"])) for turn in talk.messages)
    return (*turns, bool(talk.tools))


def _says(turn: Message) -> bool:
    """Whether a turn has content that the template must write: one that only calls tools has none."""
    return bool(turn["content"]) or not turn.get("tool_calls")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The turns with a mark each in place of the content."""
    return [{**turn, "content": _MARK.format(i)} if _says(turn) else turn for i, turn in enumerate(messages)]


def _named(messages: Sequence[Message]) -> list[Message]:
    """The turns with a mark in place of the name of each tool that they call."""
    return [
        {**turn, "tool_calls": [_renamed(call, f"{i} {k}") for k, call in enumerate(turn["tool_calls"])]}
        if turn.get("tool_calls")
        else turn
        for i, turn in enumerate(messages)
    ]


def _names(named: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """The marks of the called tools, with the number of their turn."""
    return ((i, call["function"]["name"]) for i, turn in enumerate(named) for call in turn.get("tool_calls") or ())


def _named_tools(tools: Tools) -> Tools:
    """The tools with a mark each in place of the name."""
    return None if tools is None else [_renamed(one, f"tool {nth}") for nth, one in enumerate(tools)]


def _renamed(tool: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "name": _NAME.format(mark)}}
    return {**tool, "name": _NAME.format(mark)}
