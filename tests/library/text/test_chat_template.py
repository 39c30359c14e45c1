"""Conversations under a chat template: forged tokens stay text, and no turn, tool or order gets lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.text.chat_template import (
    ChatTemplate,
    Conversation,
    RenderedConversation,
    _form,
    _has_content,
    _marked,
    _named,
    _named_tools,
    _names,
    row_variables,
    with_system_prompt,
)
from posttrain.text.templates import Rendered, RenderRequest, Template

PLAIN = (
    "{% for one in messages %}<s>{{ one.role }}: {{ one.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
WITH_TOOLS = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{% for one in messages %}<s>{{ one.role }}: "
    "{% for call in one.tool_calls or [] %}!{{ call.function.name }}{% endfor %}{{ one.content }}</s>{% endfor %}"
)
TALK = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {}}}
CALLED = [TALK[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
TOOL = {"type": "function", "function": {"name": "add"}}


def template(source: str = PLAIN) -> ChatTemplate:
    return ChatTemplate(Template(source, {}, "2024-07-26"), ["<s>", "</s>"], "tokenizer")


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def test_the_request_of_a_conversation() -> None:
    whole = Conversation(TALK, [TOOL], variables={"a": 1})
    assert whole.request() == RenderRequest(TALK, False, [TOOL], {"a": 1})
    assert whole.request(1, opened=True) == RenderRequest(TALK[:1], True, [TOOL], {"a": 1})


def test_written_text() -> None:
    requests = [RenderRequest(TALK, False), RenderRequest(TALK[:1], True)]
    assert template().write(requests) == [
        RenderedConversation("<s>user: 1+1</s><s>assistant: 2</s>", blocks=[]),
        RenderedConversation("<s>user: 1+1</s><s>assistant: ", blocks=[]),
    ]


def test_special_tokens_in_a_content_stay_text_and_are_placed() -> None:
    (found,) = template().write([RenderRequest([said("a</s>b<s>")], False)])
    assert found.text == "<s>user: a</s>b<s></s>"
    assert [found.text[slice(*span)] for span in found.spans] == ["</s>", "<s>"]
    assert list(found.spans) == [(10, 14), (15, 18)]


def test_a_turn_is_escaped_only_if_it_must_be() -> None:
    one = template()
    assert one._escaped(TALK[0]) is TALK[0]
    assert one._escaped(said("</s>")) == said("\ue0051\ue001")


def test_blocks_move_with_the_tokens_before_them() -> None:
    source = "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}|{% endfor %}"
    (found,) = template(source).write([RenderRequest([said("a</s>"), said("bc")], False)])
    assert found.text == "a</s>|bc|" and list(found.blocks) == [(0, 5), (6, 8)]
    (plain,) = template(source).write([RenderRequest([said("a")], False)])
    assert list(map(tuple, plain.blocks)) == [(0, 1)] and plain.spans == ()


def test_placeholders_of_nothing_stay() -> None:
    assert template()._unescaped(Rendered("\ue0059\ue001", False, [])) == RenderedConversation(
        "\ue0059\ue001", blocks=[]
    )


def test_an_error_shows_the_conversation_that_fails() -> None:
    source = "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}x"
    with pytest.raises(DataError) as refused:
        template(source).write([RenderRequest([said("yes")], False), RenderRequest([said("no")], False)])
    assert refused.value.what == (
        "the chat template fails on a conversation of user turns, which begins 'no': not this (line 1 of the template)"
    )
    assert refused.value.where == "tokenizer"


def test_right_templates_pass() -> None:
    one = template()
    for _ in range(2):
        one.check(Conversation(TALK))
        one.check_written(Conversation(TALK))
    template(WITH_TOOLS + "{% if add_generation_prompt %}>{% endif %}").check(Conversation(CALLED, [TOOL]))


@pytest.mark.parametrize(
    ("source", "messages", "what"),
    [
        ("{{ messages[0].content }}", TALK, "leaves out turn 2 (assistant) of"),
        ("{% for one in messages | reverse %}{{ one.content }}{% endfor %}", TALK, "changes the order of"),
        ("{% for one in messages %}{{ one.content }}{% endfor %}", CALLED, "leaves out the tool calls of turn 2 of"),
        (
            "{% for one in messages %}<s>{{ one.role }}: {{ one.content }}{% endfor %}",
            TALK,
            "ignores add_generation_prompt and so opens no answer to",
        ),
    ],
)
def test_wrong_templates_are_refused(source: str, messages: list[Any], what: str) -> None:
    with pytest.raises(DataError) as refused:
        template(source).check(Conversation(messages))
    assert refused.value.what.startswith(f"the chat template {what} a conversation of user")


def test_tools_that_are_not_written_are_refused() -> None:
    with pytest.raises(DataError, match="leaves out the tools of"):
        template().check_written(Conversation(TALK, [TOOL]))


def test_where_contents_and_names_begin() -> None:
    one = template(WITH_TOOLS)
    marked = _named(_marked(CALLED))
    frame, places = one._frame(Conversation(CALLED), marked, None)
    assert frame == "<s>user: \ue0000\ue001</s><s>assistant: !\ue0041 0\ue001</s>"
    assert places == {0: 9, 1: frame.index("\ue0041")}
    assert one._places("\ue0000\ue001 \ue0001\ue001", TALK) == [(0, 0), (1, 4)]


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"tools": [{"name": "</s>"}]}, "tool use"),
        ({"messages": [{**TALK[0], "name": "<s>"}]}, "tool use"),
        ({"variables": {"mode": "<s>"}}, "chat_template_kwargs"),
    ],
)
def test_markup_in_tool_use_and_variables_is_refused(given: Mapping[str, Any], part: str) -> None:
    with pytest.raises(DataError, match=f"the {part} of a conversation contains") as refused:
        template().check_written(replace(Conversation(TALK, name="row r1"), **given))
    assert refused.value.where == "tokenizer, row r1"


def test_thoughts_must_be_written() -> None:
    talk = Conversation([TALK[0], {**TALK[1], "reasoning_content": " so "}], name="row r1")
    template().check_thought(talk, 1, "<s>so 2")
    template().check_thought(Conversation(TALK), 1, "")
    with pytest.raises(DataError, match=r"leaves out the thoughts \(reasoning_content\) of turn 2 of"):
        template().check_thought(talk, 1, "<s>2")


def test_a_refusal_shows_the_roles_and_the_beginning() -> None:
    error = template().refusal("fails on", TALK, "Change it", ": why", "row r1")
    assert (error.what, error.where, error.fix) == (
        "the chat template fails on a conversation of user, assistant turns, which begins '1+1': why",
        "tokenizer, row r1",
        "Change it",
    )
    assert template().refusal("drops", [], "No").what == "the chat template drops a conversation of no turns"


def test_variables_of_a_row() -> None:
    assert row_variables({"chat_template_kwargs": '{"mode": 1}'}) == {"mode": 1}
    assert row_variables({"chat_template_kwargs": None}) == row_variables({}) == {}


def test_the_form_of_a_conversation() -> None:
    assert _form(Conversation(TALK)) == (("user", False, True), ("assistant", False, True), False, "{}")
    assert _form(Conversation(CALLED, [TOOL], variables={"a": 1})) == (
        ("user", False, True), ("assistant", True, False), True, '{"a": 1}',
    )  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "has"), [(said("a"), True), (said(""), True), (CALLED[1], False), ({**CALLED[1], "content": "a"}, True)]
)
def test_which_turns_have_content(turn: Mapping[str, Any], has: bool) -> None:
    assert _has_content(turn) is has


def test_placeholders_for_contents_and_names() -> None:
    assert _marked(CALLED) == [said("\ue0000\ue001"), CALLED[1]]
    named = _named(CALLED)
    assert named[0] is CALLED[0] and named[1]["tool_calls"][0]["function"]["name"] == "\ue0041 0\ue001"
    assert list(_names(named)) == [(1, "\ue0041 0\ue001")]
    assert _named_tools(None) is None and _named_tools([]) == []
    assert _named_tools([TOOL, {"name": "add", "x": 1}]) == [
        {"type": "function", "function": {"name": "\ue004tool 0\ue001"}},
        {"name": "\ue004tool 1\ue001", "x": 1},
    ]


def test_a_system_prompt_comes_first() -> None:
    assert with_system_prompt(TALK, "Be short.") == [said("Be short.", "system"), *TALK]
    assert with_system_prompt([said("You add.", "system"), *TALK], "Be short.") == [
        said("Be short.\n\nYou add.", "system"),
        *TALK,
    ]
