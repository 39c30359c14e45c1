"""Turns of the user's conversations: what they become, and why one is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from posttrain.data.turns import (
    FIELDS,
    RowError,
    _as_json,
    _call,
    _fields,
    _from_value,
    _has_more,
    _json,
    _part,
    _tools,
    _turn,
    _weight,
    _without_nulls,
    conversation,
    sharegpt,
    text,
    tool_name,
    turns,
    type_name,
    variables,
)

ASKED = {"role": "user", "content": "1+1"}
SAID = {"role": "assistant", "content": "2"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERS = {"role": "tool", "content": "2", "tool_call_id": "c1"}
TOOL = {"type": "function", "function": {"name": "add"}}


def refused(why: str) -> Any:
    return pytest.raises(RowError, match=re.escape(why))


def test_texts_are_turns_and_conversations_stay() -> None:
    assert turns({"prompt": "1+1"}, "prompt") == [("user", "1+1")]
    assert turns({"chosen": "2"}, "chosen") == [("assistant", "2")]
    assert turns({"messages": [ASKED, SAID]}, "messages") == [("user", "1+1"), ("assistant", "2")]
    with refused("'prompt' is a number; give a text, or a list of turns"):
        turns({"prompt": 3}, "prompt")
    with refused("turn 1 of 'prompt' has 'name', which would be lost"):
        turns({"prompt": [{**ASKED, "name": "me"}]}, "prompt")


def test_a_conversation_of_several_columns() -> None:
    found = conversation({"prompt": "1+1", "completion": [SAID]}, "prompt", "completion")
    assert found == {"messages": [("user", "1+1"), ("assistant", "2")], "tools": None, "fields": None}


def test_a_conversation_that_uses_tools() -> None:
    found = conversation({"messages": [ASKED, CALLS, ANSWERS, SAID], "tools": [TOOL]}, "messages")
    assert found["messages"] == [("user", "1+1"), ("assistant", ""), ("tool", "2"), ("assistant", "2")]
    assert json.loads(found["tools"]) == [TOOL]
    assert json.loads(found["fields"]) == [{}, {"tool_calls": [CALL]}, {"tool_call_id": "c1"}, {}]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([ASKED, {**CALLS, "tool_calls": [{**CALL, "function": {"name": "sub"}}]}], "turn 2 calls 'sub', which"),
        ([ASKED, CALLS, ANSWERS, CALLS], "turn 4 has the call id 'c1', which occurs twice"),
        ([ASKED, CALLS, {**ANSWERS, "tool_call_id": "c2"}], "did not make (its calls: c1); fix tool_call_id"),
        ([ASKED, SAID, ANSWERS], "did not make (it has no open calls); fix tool_call_id"),
        ([ASKED, {**SAID, "weight": 0}], "every turn of the assistant has weight 0"),
    ],
)
def test_tool_use_that_does_not_fit(messages: list[Any], why: str) -> None:
    with refused(why):
        conversation({"messages": messages, "tools": [TOOL]}, "messages")


def test_turns_with_from_and_value() -> None:
    row = {"conversations": [{"from": "human", "value": "1+1"}, {"from": "gpt", "value": "2"}, ASKED]}
    assert sharegpt(row)["messages"] == [("user", "1+1"), ("assistant", "2"), ("user", "1+1")]
    with refused("'conversations' is a text; give a list of turns"):
        sharegpt({"conversations": "a"})
    assert _from_value({"from": "observation", "value": "2", "weight": 0}, "turn 1") == {
        "role": "tool", "content": "2", "weight": 0,
    }  # fmt: skip
    assert _from_value(ASKED, "turn 1") is ASKED
    with refused("turn 1 is from 'bot', expected system, user"):
        _from_value({"from": "bot"}, "turn 1")


def test_half_a_character_is_refused() -> None:
    assert text("é", "here") == "é"
    with refused("here contains half a character"):
        text("\ud800", "here")


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (TOOL, "add"),
        ({"name": "add"}, "add"),
        ({"function": {"name": 3}}, None),
        ({"function": "add"}, None),
        ("a", None),
    ],
)
def test_the_name_of_a_tool(tool: Any, name: str | None) -> None:
    assert tool_name(tool) == name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "missing or null"), (True, "a boolean"), (1.5, "a number"), ("", "a text"), ([], "a list"),
        ({}, "an object"), (b"", "of the type bytes"),
    ],
)  # fmt: skip
def test_types_in_plain_words(value: Any, name: str) -> None:
    assert type_name(value) == name


def test_which_turns_have_more() -> None:
    assert _has_more(ASKED) is False and _has_more({**ASKED, "x": 1}) is True
    assert _has_more({"role": "assistant", "tool_calls": []}) is True


def test_role_and_content_of_a_turn() -> None:
    assert _turn(ASKED, "turn 1", ()) == ("user", "1+1") and _turn(CALLS, "turn 1", FIELDS) == ("assistant", "")
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1", "image": None}]
    assert _turn({"role": "user", "content": parts}, "turn 1", ()) == ("user", "1+1")
    for turn, why in (
        ("a", "turn 1 is a text; give each turn"), ({"role": "user"}, "the content of turn 1 is missing or null"),
        ({"content": "a"}, "the role of turn 1 is missing or null"),
    ):  # fmt: skip
        with refused(why):
            _turn(turn, "turn 1", ())


def test_parts_of_a_content() -> None:
    assert _part({"type": "text", "text": "a"}, "turn 1") == "a"
    with refused("turn 1 has the part {'type': 'image'}"):
        _part({"type": "image"}, "turn 1")


def test_fields_of_a_turn() -> None:
    assert _fields({**CALLS, "weight": 1, "name": None}, "turn 1") == {"tool_calls": [CALL]}
    assert _fields({**SAID, "weight": 0, "reasoning_content": "so"}, "turn 1") == {
        "weight": 0,
        "reasoning_content": "so",
    }
    for turn, why in (
        ({**SAID, "reasoning_content": 3}, "'reasoning_content' of turn 1 is a number; give a text"),
        ({**ASKED, "tool_calls": [CALL]}, "'tool_calls' of turn 1 must be a list"),
        ({**SAID, "reasoning_content": "\x01"}, "turn 1 contains control characters"),
        ({**CALLS, "tool_calls": [{"name": "a", "arguments": {"x": float("inf")}}]}, "contains the number inf"),
    ):
        with refused(why):
            _fields(turn, "turn 1")


def test_weights_are_0_or_1() -> None:
    found: dict[str, Any] = {"weight": 1.0}
    assert _weight(found, SAID, "turn 1") == 1 and found == {"weight": 1} and isinstance(found["weight"], int)
    for value, turn in ((0.5, SAID), (True, SAID), (0, ASKED)):
        with refused(f"turn 1 has the weight {value}; give 0 or 1"):
            _weight({"weight": value}, turn, "turn 1")


def test_calls_in_the_form_of_templates() -> None:
    assert _call(CALL, "turn 1") == CALL
    bare = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert _call({"name": "add", "arguments": '{"a": 1}', "id": None}, "turn 1") == bare
    for call, why in (
        ({"id": 3, "name": "add"}, "turn 1 has the call id 3; give a text"),
        ({"name": "add", "arguments": "[1]"}, "turn 1 has the tool call"), ({}, "turn 1 has the tool call {}"),
    ):  # fmt: skip
        with refused(why):
            _call(call, "turn 1")


def test_tools_of_a_row_as_json() -> None:
    assert _tools({"tools": [{**TOOL, "x": None}]}) == _tools({"tools": json.dumps([TOOL])}) == _as_json([TOOL])
    assert _tools({}) is None and _tools({"tools": "[]"}) is None
    with refused("'tools' is {'a': 1}; give a list of function schemas"):
        _tools({"tools": {"a": 1}})


def test_variables_of_a_row_as_json() -> None:
    name = "chat_template_kwargs"
    assert variables({name: {"b": 1, "a": None}}) == variables({name: '{"b": 1}'}) == '{"b":1}'
    assert variables({}) is None and variables({name: {}}) is None
    with refused("messages means something else in a template"):
        variables({name: {"messages": 1}})


def test_json() -> None:
    assert _as_json({"b": "é", "a": [1]}) == '{"b":"é","a":[1]}'
    assert _json("[1]") == [1] and _json("[1") is None
    assert _without_nulls({"a": None, "b": [{"c": None, "d": 1}]}) == {"b": [{"d": 1}]} and _without_nulls(3) == 3
