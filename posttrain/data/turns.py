"""Turns of the user's conversations: role, content and tool use fields. Errors say why a turn is rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from posttrain.data.columns import CONTROL, ROLES, VARIABLES, canonical
from posttrain.data.shown import short_repr
from posttrain.settings.params import HALF
from posttrain.text.templates import variables_fault

Row = Mapping[str, Any]
Turns = list[tuple[str, str]]
"""The role and content of each turn."""

FIELDS: Final = ("name", "reasoning_content", "tool_call_id", "tool_calls", "weight")
"""Fields besides role and content that a turn of a chat table may have."""
WEIGHT: Final = "weight"
"""The field whose value 0 means that an assistant turn is not trained."""
_ROLE_OF: Final = {"completion": "assistant", "chosen": "assistant", "rejected": "assistant"}
_SHAREGPT: Final = {
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
}


class RowError(ValueError):
    """A row that cannot be converted. The message says why and how to fix it."""


def turns(row: Row, name: str) -> Turns:
    """Return a plain text as one turn; return a conversation unchanged."""
    value = row[name]
    if isinstance(value, str):
        return [(_ROLE_OF.get(name, "user"), text(value, name))]
    if isinstance(value, list):
        return [_turn(turn, f"turn {number} of '{name}'", ()) for number, turn in enumerate(value, 1)]
    raise RowError(f"'{name}' is {type_name(value)}; give a text, or a list of turns with 'role' and 'content'")


def conversation(row: Row, *names: str) -> dict[str, Any]:
    """Return the turns of these columns as `messages`, with `fields` and `tools` if they use tools."""
    messages: Turns = []
    fields: list[dict[str, Any]] = []
    for name in names:
        value = row[name]
        if isinstance(value, list):
            for number, turn in enumerate(value, 1):
                where = f"turn {number} of '{name}'"
                messages.append(_turn(turn, where, FIELDS))
                fields.append(_fields(turn, where) if _has_more(turn) else {})
        else:
            messages += turns(row, name)
            fields.append({})
    tools = _tools(row)
    if any(fields):
        _check_tool_use(messages, fields, tools)
        _check_trained(messages, fields)
    return {"messages": messages, "tools": tools, "fields": _as_json(fields) if any(fields) else None}


def _check_tool_use(messages: Turns, fields: list[dict[str, Any]], tools: str | None) -> None:
    """Reject calls of unknown tools, duplicate ids, and answers to calls that were not made."""
    known = {tool_name(load) for load in json.loads(tools)} if tools else None
    seen: set[str] = set()
    open_ids: set[str] = set()
    for number, ((role, _), field) in enumerate(zip(messages, fields, strict=True), 1):
        if role != "tool":
            open_ids = set()
        for call in field.get("tool_calls", ()):
            name, given = call["function"]["name"], call.get("id")
            if known is not None and name not in known:
                listed = ", ".join(sorted(map(str, known)))
                raise RowError(f"turn {number} calls {short_repr(name)}, which is not in 'tools' ({listed}); add it")
            if given in seen:
                raise RowError(f"turn {number} has the call id {short_repr(given)}, which occurs twice; rename one")
            if given is not None:
                seen.add(given)
                open_ids.add(given)
        answered = field.get("tool_call_id")
        if answered is not None and answered not in open_ids:
            calls = f"(its calls: {', '.join(sorted(open_ids))})" if open_ids else "(it has no open calls)"
            raise RowError(
                f"turn {number} answers the call {short_repr(answered)}, which the assistant's turn before it "
                f"did not make {calls}; fix tool_call_id"
            )
        open_ids.discard(answered or "")


def _check_trained(messages: Turns, fields: list[dict[str, Any]]) -> None:
    """Reject a row in which `weight` leaves no turn to train."""
    turns_of = [field for (role, _), field in zip(messages, fields, strict=True) if role == "assistant"]
    if turns_of and all(WEIGHT in field for field in turns_of):
        raise RowError("every turn of the assistant has weight 0, so there is nothing to train; drop the row")


def sharegpt(row: Row) -> dict[str, Any]:
    """Return turns with `from` and `value` as messages. Some data sets of this layout have `role` and `content`."""
    value = row["conversations"]
    if not isinstance(value, list):
        raise RowError(f"'conversations' is {type_name(value)}; give a list of turns with 'from' and 'value'")
    renamed = [_from_value(turn, f"turn {number} of 'conversations'") for number, turn in enumerate(value, 1)]
    return conversation({**row, "conversations": renamed}, "conversations")


def text(value: str, where: str) -> str:
    """Return the text. Reject lone surrogates."""
    if not value.isascii() and HALF.search(value):
        raise RowError(f"{where} contains half a character (a lone surrogate); remove it")
    return value


def tool_name(tool: Any) -> str | None:
    """Return the name in a function's schema or call, which may be wrapped: `{type: function, function: {...}}`."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def type_name(value: Any) -> str:
    """Return a value's type in plain words."""
    named = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return "missing or null" if value is None else named.get(type(value), f"of the type {type(value).__name__}")


def _has_more(turn: Row) -> bool:
    """Tell whether a turn has more than role and content."""
    return len(turn) > 2 or not turn.keys().isdisjoint(FIELDS)


def _turn(turn: Any, where: str, allowed: tuple[str, ...]) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise RowError(f"{where} is {type_name(turn)}; give each turn the texts 'role' and 'content'")
    role, content = turn.get("role"), turn.get("content")
    if _has_more(turn):
        _check_extras(turn, where, allowed)
        if content is None and turn.get("tool_calls"):
            content = ""
    if isinstance(content, list):
        content = "".join(_part(part, where) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        name = "content" if isinstance(role, str) else "role"
        raise RowError(
            f"the {name} of {where} is {type_name(turn.get(name))}; give each turn the texts 'role' and 'content'"
        )
    return text(role, where), text(content, where)


def _check_extras(turn: Row, where: str, allowed: tuple[str, ...]) -> None:
    for extra, value in turn.items():
        if value is None or extra in ("role", "content") or (extra == "tool_calls" and value == []):
            continue
        if extra not in allowed or (extra == "name" and turn.get("role") != "tool"):
            raise RowError(
                f"{where} has {short_repr(extra)}, which would be lost; put it into the content or remove it"
            )


def _part(part: Any, where: str) -> str:
    """Return the text of one part of a content. Templates join such parts without a separator."""
    part = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    if set(part) != {"type", "text"} or part["type"] != "text" or not isinstance(part["text"], str):
        raise RowError(
            f"{where} has the part {short_repr(part)}; only parts {{type: text, text: ...}} can be trained on"
        )
    return part["text"]


def _from_value(turn: Any, where: str) -> Any:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn
    role = _SHAREGPT.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        known = ", ".join(_SHAREGPT)
        raise RowError(f"{where} is from {short_repr(turn['from'])}, expected {known}; rename it")
    rest = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {"role": role, "content": turn.get("value"), **rest}


def _fields(turn: Row, where: str) -> dict[str, Any]:
    """Return a turn's fields besides role and content, without nulls (parquet adds nulls for other turns' fields)."""
    used = {name: turn[name] for name in FIELDS if turn.get(name) not in (None, [])}
    if WEIGHT in used and _weight(used, turn, where) == 1:
        del used[WEIGHT]
    for name, value in used.items():
        if name not in ("tool_calls", WEIGHT) and not isinstance(value, str):
            raise RowError(f"'{name}' of {where} is {type_name(value)}; give a text")
    if "tool_calls" in used:
        if turn["role"] != "assistant" or not isinstance(used["tool_calls"], list):
            raise RowError(f"'tool_calls' of {where} must be a list, in a turn of the assistant; fix the row")
        used["tool_calls"] = [_call(call, where) for call in used["tool_calls"]]
    _check_texts(used, where)
    return used


def _weight(fields: dict[str, Any], turn: Row, where: str) -> int:
    """Tell whether a turn is trained, as a number. Reject other weights."""
    value = fields[WEIGHT]
    if isinstance(value, bool) or value not in (0, 1) or turn["role"] != "assistant":
        raise RowError(f"{where} has the weight {short_repr(value)}; give 0 or 1, to a turn of the assistant")
    fields[WEIGHT] = int(value)
    return int(value)


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return one call in the form for templates: `{type: function, function: {name, arguments: OBJECT}}`."""
    part = _without_nulls(call)
    if tool_name(part):
        function = part.get("function", part)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _json(arguments)
        if isinstance(arguments, dict):
            if not isinstance(part.get("id", ""), str):
                raise RowError(f"{where} has the call id {short_repr(part['id'])}; give a text")
            named = {"id": part["id"]} if "id" in part else {}
            return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    raise RowError(
        f"{where} has the tool call {short_repr(call)}; "
        "give {type: function, function: {name: TEXT, arguments: OBJECT, or its JSON}}"
    )


def _tools(row: Row) -> str | None:
    """Return a conversation's tools as JSON. The row has a list of function schemas or the JSON text of one."""
    value = row.get("tools")
    tools = _json(value) if isinstance(value, str) else _without_nulls(value)
    if value is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(tool_name(tool) for tool in tools):
        raise RowError(f"'tools' is {short_repr(value)}; give a list of function schemas, each with a name")
    _check_texts(tools, "'tools'")
    return _as_json(tools)


def variables(row: Row) -> str | None:
    """Return the row's extra template variables as JSON. The row contains an object or its JSON text."""
    value = row.get(VARIABLES)
    given = _json(value) if isinstance(value, str) else _without_nulls(value)
    if value is None or given == {}:
        return None
    if fault := variables_fault(given):
        raise RowError(f"'{VARIABLES}' is {short_repr(value)}; {fault}")
    _check_texts(given, f"'{VARIABLES}'")
    return canonical(given)


def _as_json(value: Any) -> str:
    """Return JSON with the keys in their order, because templates write them in this order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _check_texts(value: Any, where: str) -> None:
    """Reject control characters, lone surrogates and numbers that JSON lacks, anywhere in a value."""
    if isinstance(value, str):
        if re.search(CONTROL, text(value, where)):
            raise RowError(f"{where} contains control characters; remove them")
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_texts(item, where)
    elif isinstance(value, float) and value - value != 0:
        raise RowError(f"{where} contains the number {value}, which JSON does not allow; remove it")
