"""Render conversations with a chat template, and check that it keeps all turns and tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.errors import DataError
from posttrain.measure.record import note
from posttrain.text.templates import Rendered, RenderError, RenderRequest, Template

Message = Mapping[str, Any]
"""`role` and `content`, and with tools further fields for templates, e.g. `tool_calls`."""
Tools = Sequence[Mapping[str, Any]] | None

_MARK = "\ue000{}\ue001"
"""A placeholder from Unicode's private use area that replaces content while the template is rendered."""
_SPECIAL = "\ue005{}\ue001"
_ESCAPED = re.compile("\ue005([0-9]{1,9})\ue001")
"""The placeholder, by number, for a special token inside content."""
_NAME = "\ue004{}\ue001"
"""The placeholder for a tool's name."""


@dataclass(frozen=True)
class Conversation:
    """Turns, available tools, the row's name in errors, the untrained turns, and template variables."""

    messages: Sequence[Message]
    tools: Tools = None
    name: str = ""
    untrained: frozenset[int] = frozenset()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def request(self, turns: int | None = None, *, opened: bool = False) -> RenderRequest:
        """Return the request that renders its first turns, or all turns."""
        return RenderRequest(self.messages[:turns], opened, self.tools, self.variables)


@dataclass(frozen=True)
class RenderedConversation:
    """A rendered conversation, the special-token look-alikes in its contents, and its `{% generation %}` blocks."""

    text: str
    spans: Sequence[tuple[int, int]] = ()
    blocks: Sequence[tuple[int, int]] = field(default=(), kw_only=True)


class ChatTemplate:
    """A chat template and its special tokens, which content cannot forge."""

    def __init__(self, template: Template, specials: Sequence[str], where: str) -> None:
        self._template, self._specials, self._where = template, specials, where
        self._escaped_texts = [*specials, _SPECIAL[0]]
        self._pattern = re.compile("|".join(map(re.escape, self._escaped_texts)))
        self._checked: set[Any] = set()

    def write(self, requests: Sequence[RenderRequest]) -> list[RenderedConversation]:
        """Return the template's text for each conversation, and the places where contents look like a special token."""
        escaped = [
            request._replace(messages=[self._escaped(turn) for turn in request.messages]) for request in requests
        ]
        return [self._unescaped(rendered) for rendered in self._render(escaped, requests)]

    def _escaped(self, turn: Message) -> Message:
        """Return the turn with a placeholder for each special token in its content, so that it is treated as text."""
        content = turn["content"]
        if not any(special in content for special in self._escaped_texts):
            return turn
        return {**turn, "content": self._pattern.sub(self._placeholder, content)}

    def _placeholder(self, match: re.Match[str]) -> str:
        return _SPECIAL.format(self._escaped_texts.index(match[0]))

    def _unescaped(self, rendered: Rendered) -> RenderedConversation:
        """Return the rendered text with the escaped tokens as text again, and their places."""
        placeholders = [match for match in _ESCAPED.finditer(rendered.text) if int(match[1]) < len(self._escaped_texts)]
        if not placeholders:
            return RenderedConversation(rendered.text, blocks=rendered.blocks)
        text, spans, at = "", [], 0
        edges = [edge for block in rendered.blocks for edge in block]
        moved = list(edges)
        for placeholder in placeholders:
            special = self._escaped_texts[int(placeholder[1])]
            text += rendered.text[at : placeholder.start()]
            spans.append((len(text), len(text) + len(special)))
            text += special
            at = placeholder.end()
            longer = len(special) - len(placeholder[0])
            moved = [new + longer * (old > placeholder.start()) for new, old in zip(moved, edges, strict=True)]
        return RenderedConversation(
            text + rendered.text[at:], spans, blocks=list(zip(moved[::2], moved[1::2], strict=True))
        )

    def _render(self, requests: Sequence[RenderRequest], shown: Sequence[RenderRequest]) -> list[Rendered]:
        """Return the rendered conversations. An error shows the conversation at the same index of `shown`."""
        rendered: list[Rendered] = []
        try:
            for result in self._template.render(requests):
                rendered.append(result)
                if result.dated:
                    note(date=self._template.date)
        except RenderError as error:
            fix = "Change the conversation, or the template"
            raise self.refusal("fails on", shown[len(rendered)].messages, fix, f": {error}") from error
        return rendered

    def check(self, conversation: Conversation) -> None:
        """Reject a template that drops or reorders turns or tools, or opens no answer. Each form is checked once."""
        self._check_tool_use(conversation)
        messages, form = conversation.messages, ("opened", *_form(conversation))
        if form in self._checked:
            return
        marked, tools = _named(_marked(messages)), _named_tools(conversation.tools)
        frame, places = self._frame(conversation, marked, tools)
        if len(messages) > 1:
            plain = RenderRequest(marked[:-1], False, tools, conversation.variables)
            before = plain, plain._replace(opened=True)
            closed, opened = (result.text for result in self._render(before, [RenderRequest(messages, False)] * 2))
            header = frame[len(closed) : places[len(messages) - 1]]
            if closed == opened and frame.startswith(closed) and header.strip():
                fix = f"Let it write {header!r} after the last turn where add_generation_prompt is true"
                raise self.refusal("ignores add_generation_prompt and so opens no answer to", messages[:-1], fix)
        self._checked.add(form)

    def check_written(self, conversation: Conversation) -> None:
        """Check the template in the same way on a conversation without an answer to generate."""
        self._check_tool_use(conversation)
        if _form(conversation) not in self._checked:
            self._frame(conversation, _named(_marked(conversation.messages)), _named_tools(conversation.tools))
            self._checked.add(_form(conversation))

    def check_thought(self, conversation: Conversation, index: int, text: str) -> None:
        """Reject a template that omits the thoughts of the last turn."""
        thought = str(conversation.messages[index].get("reasoning_content") or "").strip()
        if thought and thought not in text:
            fix = "Use a template that writes them, or put them into the content"
            what = f"leaves out the thoughts (reasoning_content) of turn {index + 1} of"
            raise self.refusal(what, conversation.messages, fix, name=conversation.name)

    def _frame(self, conversation: Conversation, marked: Sequence[Message], tools: Tools) -> tuple[str, dict[int, int]]:
        """Return the text with placeholders for contents and names, and where those of each turn begin."""
        messages = conversation.messages
        request = RenderRequest(marked, False, tools, conversation.variables)
        frame = self._render([request], [RenderRequest(messages, False)])[0].text
        places = dict(self._places(frame, messages))
        fix = "Use a template that writes them, or remove them from the data"
        for index, name in _names(marked):
            if name not in frame:
                raise self.refusal(f"leaves out the tool calls of turn {index + 1} of", messages, fix)
            places.setdefault(index, frame.find(name))
        if tools and not all(_NAME.format(f"tool {index}") in frame for index in range(len(tools))):
            raise self.refusal("leaves out the tools of", messages, fix)
        return frame, places

    def _check_tool_use(self, conversation: Conversation) -> None:
        """Reject markup in tool use, which the template would mix with its own markup."""
        used = [{**turn, "content": ""} for turn in conversation.messages if len(turn) > 2]
        if not used and not conversation.tools and not conversation.variables:
            return
        for part, value in (("tool use", [used, conversation.tools]), ("chat_template_kwargs", conversation.variables)):
            text = json.dumps(value, ensure_ascii=False)
            forged = next((special for special in self._specials if special in text), None)
            if forged is not None:
                what = f"the {part} of a conversation contains {forged!r}, which ends or opens turns"
                where = ", ".join(filter(None, (self._where, conversation.name)))
                raise DataError(
                    what=what, where=where, fix="Remove it from the tools, the turns' fields or the variables"
                )

    def _places(self, frame: str, messages: Sequence[Message]) -> list[tuple[int, int]]:
        """Return (turn, position of its placeholder in the rendered text) for each turn with content."""
        nonempty = [i for i, turn in enumerate(messages) if _has_content(turn)]
        places = [frame.find(_MARK.format(i)) for i in nonempty]
        fix = "Use a template that accepts these turns, or change the conversation"
        if -1 in places:
            lost = nonempty[places.index(-1)]
            raise self.refusal(f"leaves out turn {lost + 1} ({messages[lost]['role']}) of", messages, fix)
        if places != sorted(places):
            raise self.refusal("changes the order of", messages, fix)
        return list(zip(nonempty, places, strict=True))

    def refusal(self, what: str, messages: Sequence[Message], fix: str, why: str = "", name: str = "") -> DataError:
        """Return an error about the template's treatment of a conversation, shown by its roles and its beginning."""
        roles = ", ".join(turn["role"] for turn in messages) or "no"
        begins = f", which begins {messages[0]['content'][:60]!r}" if messages else ""
        where = ", ".join(filter(None, (self._where, name)))
        return DataError(
            what=f"the chat template {what} a conversation of {roles} turns{begins}{why}", where=where, fix=fix
        )


def row_variables(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the template variables of a table row."""
    variables: dict[str, Any] = json.loads(row.get("chat_template_kwargs") or "{}")
    return variables


def _form(conversation: Conversation) -> tuple[Any, ...]:
    """Return a key of everything in a conversation that changes the template's treatment."""
    turns = ((turn["role"], "tool_calls" in turn, bool(turn["content"])) for turn in conversation.messages)
    return (*turns, bool(conversation.tools), json.dumps(conversation.variables))


def _has_content(turn: Message) -> bool:
    """Tell whether a turn has content that the template must write. A turn that only calls tools has none."""
    return bool(turn["content"]) or not turn.get("tool_calls")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """Return the turns with placeholders for their contents."""
    return [{**turn, "content": _MARK.format(i)} if _has_content(turn) else turn for i, turn in enumerate(messages)]


def _named(messages: Sequence[Message]) -> list[Message]:
    """Return the turns with placeholders for the names of called tools."""
    return [
        {**turn, "tool_calls": [_renamed(call, f"{i} {k}") for k, call in enumerate(turn["tool_calls"])]}
        if turn.get("tool_calls")
        else turn
        for i, turn in enumerate(messages)
    ]


def _names(named: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """Yield the placeholders of the called tools with their turn's index."""
    return ((i, call["function"]["name"]) for i, turn in enumerate(named) for call in turn.get("tool_calls") or ())


def _named_tools(tools: Tools) -> Tools:
    """Return the tools with placeholders for their names."""
    return None if tools is None else [_renamed(tool, f"tool {index}") for index, tool in enumerate(tools)]


def _renamed(tool: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "name": _NAME.format(mark)}}
    return {**tool, "name": _NAME.format(mark)}


def with_system_prompt(turns: Sequence[Message], context: str) -> list[Message]:
    """Return a conversation whose system turn begins with the context."""
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{context}\n\n{turns[0]['content']}"}, *turns[1:]]
    return [{"role": "system", "content": context}, *turns]
