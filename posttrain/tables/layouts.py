"""Turns one row of a TRL data set layout into a row of our tables, or says why it cannot be one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from posttrain.params import HALF
from posttrain.tables.columns import COLUMNS, TURNS, Kind, content_ids
from posttrain.tables.failures import shown

Row = Mapping[str, Any]
Layout = tuple[str, ...]
Turns = list[tuple[str, str]]
"""Role and content of each turn."""

_LABELS: Final = {"true": True, "1": True, "false": False, "0": False}
_ROLE_OF: Final = {"completion": "assistant", "chosen": "assistant", "rejected": "assistant"}


class OddRowError(ValueError):
    """A row that cannot become one of ours; the message says why and what to do."""


class NoLayoutError(OddRowError):
    """A row without the columns of any layout."""


def convert(row: Row, kind: Kind) -> dict[str, Any]:
    """The table's own columns but `id` and `split`; `problem` is None where the row does not name one."""
    for layout, turn in LAYOUTS[kind].items():
        if all(row.get(name) is not None for name in layout):
            turned = turn(row)
            if "problem" in COLUMNS[kind]:
                turned["problem"] = _scalar(row, "problem")
            return turned
    lacking: list[list[str]] = [[name for name in layout if row.get(name) is None] for layout in LAYOUTS[kind]]
    least = sorted(lacking, key=len)[0]
    raise NoLayoutError(f"{' and '.join(least)} missing or null; fill it in or drop the row")


def understood(kind: Kind) -> str:
    """The layouts of a table, for people."""
    return " | ".join(" + ".join(layout) for layout in LAYOUTS[kind])


def wanted_columns(kind: Kind) -> frozenset[str]:
    """Every column that some layout reads."""
    optional = {"answer", "info", "margin", "problem", "split"}
    return frozenset(name for layout in LAYOUTS[kind] for name in layout) | optional


def table_of(rows: Sequence[Row], kind: Kind) -> pl.DataFrame:
    """Converted rows as a frame, `problem` filled in with the hash of what was asked."""
    names = [name for name in COLUMNS[kind] if name not in ("id", "split")]
    columns = [_series(name, [row[name] for row in rows], COLUMNS[kind][name]) for name in names]
    frame = pl.DataFrame(columns)
    if "problem" not in names or not frame["problem"].null_count():
        return frame
    asked = pl.col("messages").list.head(pl.col("messages").list.len().cast(pl.Int64()).sub(1).clip(0))
    prompt = frame.select(asked.alias("prompt") if kind == "chat" else pl.col("prompt"))
    return frame.with_columns(pl.col("problem").fill_null(content_ids(prompt, ["prompt"])))


def _series(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    if dtype != TURNS:
        return pl.Series(name, values, dtype=dtype)
    # by columns, because polars takes several times as long to make structs of Python's, and Arrow twice the memory
    sizes = [len(turns) for turns in values]
    flat = [turn for turns in values for turn in turns]
    fields = {
        part: pl.Series([turn[nth] for turn in flat], dtype=pl.String()) for nth, part in enumerate(("role", "content"))
    }
    turns = pl.DataFrame({"row": np.repeat(np.arange(len(sizes)), sizes), name: pl.DataFrame(fields).to_struct()})
    grouped = turns.group_by("row", maintain_order=True).agg(name)
    rows = pl.DataFrame({"row": np.arange(len(sizes))}).join(grouped, on="row", how="left", maintain_order="left")
    return rows.select(pl.coalesce(name, pl.lit([], dtype=TURNS))).to_series()


def _turns(row: Row, name: str) -> Turns:
    """A plain text as one turn, or a conversation as it is."""
    value = row[name]
    if isinstance(value, str):
        return [(_ROLE_OF.get(name, "user"), _text(value, name))]
    if isinstance(value, list):
        return [_turn(turn, f"turn {nth} of '{name}'") for nth, turn in enumerate(value, 1)]
    raise OddRowError(f"'{name}' is {_type(value)}; give a text, or a list of turns with 'role' and 'content'")


def _turn(turn: Any, where: str) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise OddRowError(f"{where} is {_type(turn)}; each turn needs the texts 'role' and 'content'")
    role, content = turn.get("role"), turn.get("content")
    if len(turn) > 2:
        _check_extras(turn, where)
    if isinstance(content, list):
        content = "".join(_part(part, where) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        name = "content" if isinstance(role, str) else "role"
        raise OddRowError(
            f"the {name} of {where} is {_type(turn.get(name))}; each turn needs the texts 'role' and 'content'"
        )
    return _text(role, where), _text(content, where)


def _check_extras(turn: Row, where: str) -> None:
    for extra, value in turn.items():
        if value is not None and extra not in ("role", "content"):
            raise OddRowError(f"{where} has {shown(extra)}, which would be lost; put it into the content or remove it")


def _part(part: Any, where: str) -> str:
    """The text of one part of a content; templates put such parts together with nothing between them."""
    told = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    if set(told) != {"type", "text"} or told["type"] != "text" or not isinstance(told["text"], str):
        raise OddRowError(f"{where} has the part {shown(part)}; only parts {{type: text, text: ...}} can be trained on")
    return told["text"]


def _text(value: str, where: str) -> str:
    if not value.isascii() and HALF.search(value):
        raise OddRowError(f"{where} holds half a character (a surrogate); remove it")
    return value


def _scalar(row: Row, name: str) -> str | None:
    """A text; a number or boolean as JSON writes it, unless it could be written in two ways."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value, f"'{name}'")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float):
        raise OddRowError(f"'{name}' is {_type(value)}; give a text or a number")
    if not math.isfinite(value) or value.is_integer():
        raise OddRowError(f"'{name}' is the number {value}, which can be written in several ways; give it as a text")
    return repr(value)


def _corpus(row: Row) -> dict[str, Any]:
    if not isinstance(row["text"], str):
        raise OddRowError(f"'text' is {_type(row['text'])}; give a text")
    return {"text": _text(row["text"], "'text'")}


def _messages(row: Row) -> dict[str, Any]:
    return {"messages": _turns(row, "messages")}


def _demonstration(row: Row) -> dict[str, Any]:
    return {"messages": _turns(row, "prompt") + _turns(row, "completion")}


def _prompt(row: Row) -> dict[str, Any]:
    prompt = {"prompt": _turns(row, "prompt"), "answer": _scalar(row, "answer") or ""}
    return {**prompt, "info": _info(row), "task": ""}


def _info(row: Row) -> str:
    """What rewards may want to know of a prompt, as JSON; csv has it as text."""
    value = row.get("info")
    try:
        found = json.loads(value) if isinstance(value, str) else {} if value is None else value
        if isinstance(found, dict):
            return json.dumps(found, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        pass
    raise OddRowError(f"'info' is {shown(value)}; give an object, e.g. {{\"schema\": ...}}, or rename the column")


def _preference(row: Row) -> dict[str, Any]:
    prompt = _turns(row, "prompt")
    answers = {name: _after(prompt, _turns(row, name), name) for name in ("chosen", "rejected")}
    return {"prompt": prompt, **answers, "margin": _margin(row)}


def _implicit_preference(row: Row) -> dict[str, Any]:
    for name in ("chosen", "rejected"):
        if isinstance(row[name], str):
            raise OddRowError(f"'{name}' is a plain text and there is no 'prompt'; add the prompt")
    chosen, rejected = _turns(row, "chosen"), _turns(row, "rejected")
    prompt = chosen[:-1]
    return {
        "prompt": prompt,
        "chosen": chosen[-1:],
        "rejected": _after(prompt, rejected, "rejected"),
        "margin": _margin(row),
    }


def _judged(row: Row) -> dict[str, Any]:
    prompt = _turns(row, "prompt")
    return {
        "prompt": prompt,
        "completion": _after(prompt, _turns(row, "completion"), "completion"),
        "label": _label(row),
    }


def _after(prompt: Turns, answer: Turns, name: str) -> Turns:
    """The answer's own turn; where the answer repeats the conversation, the turns before must be the prompt's."""
    if len(answer) > 1 and answer[:-1] != prompt:
        raise OddRowError(f"'{name}' has turns before its last that are not the prompt's; they must be one")
    return answer[-1:]


def _label(row: Row) -> bool:
    value = row["label"]
    text = value.lower() if isinstance(value, str) else str(value).lower() if isinstance(value, int) else ""
    if text not in _LABELS:
        raise OddRowError(f"'label' is {shown(value)}; give true/false or 1/0")
    return _LABELS[text]


def _margin(row: Row) -> float:
    """By how much the chosen answer is better; 0 is unknown. csv has numbers as texts."""
    value = row.get("margin")
    try:
        if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
            return float(value or 0)
    except (ValueError, OverflowError):
        pass
    raise OddRowError(f"'margin' is {shown(value)}; give a number, or rename the column")


def _type(value: Any) -> str:
    named = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return "missing or null" if value is None else named.get(type(value), f"of the type {type(value).__name__}")


LAYOUTS: Final[dict[Kind, dict[Layout, Callable[[Row], dict[str, Any]]]]] = {
    "corpus": {("text",): _corpus},
    "chat": {("messages",): _messages, ("prompt", "completion"): _demonstration},
    "prompts": {("prompt",): _prompt},
    "pairs": {("prompt", "chosen", "rejected"): _preference, ("chosen", "rejected"): _implicit_preference},
    "feedback": {("prompt", "completion", "label"): _judged},
    "rollouts": {},
}
"""Per table the layouts that are understood; a row takes the first whose columns it has all filled in."""
