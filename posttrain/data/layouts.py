"""Convert a row of a known data set layout into a row of a posttrain table, or say why that is not possible."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from posttrain.data.columns import COLUMNS, OPTIONAL, TURNS, VARIABLES, Kind, content_ids
from posttrain.data.shown import short_repr
from posttrain.data.turns import (  # fmt: skip
    Row,
    RowError,
    Turns,
    conversation,
    sharegpt,
    text,
    tool_name,
    turns,
    type_name,
    variables,
)

Layout = tuple[str, ...]

_LABELS: Final = {"true": True, "1": True, "false": False, "0": False}


class NoLayoutError(RowError):
    """A row without the columns of any layout."""


def convert(row: Row, kind: Kind) -> dict[str, Any]:
    """Return the table's columns except `id` and `split`. `problem` is None if the row has none."""
    first, *others = convert_all(row, kind)
    if others:
        raise RowError("it has several labelled steps; give a table of them (data.files)")
    return first


def convert_all(row: Row, kind: Kind) -> list[dict[str, Any]]:
    """Like `convert`, for a row that may become several rows: one for each labelled step."""
    for layout, turn in LAYOUTS[kind].items():
        if all(row.get(name) is not None for name in layout):
            turned = turn(row)
            several = turned if isinstance(turned, list) else [turned]
            if kind != "corpus":
                several = [_with_system(row, one) for one in several]
                _check_no_tools(row, kind)
            if "problem" in COLUMNS[kind]:
                shared = {"problem": _scalar(row, "problem"), VARIABLES: variables(row)}
                several = [{**one, **shared} for one in several]
            return several
    missing = {layout: [name for name in layout if row.get(name) is None] for layout in LAYOUTS[kind]}
    nearest = min(missing, key=lambda layout: (len(missing[layout]) == len(layout), len(missing[layout])))
    fewest = missing[nearest]
    names, verb = " and ".join(f"'{name}'" for name in fewest), "is" if len(fewest) == 1 else "are"
    raise NoLayoutError(f"{names} {verb} missing or null; fill it in or drop the row")


def _with_system(row: Row, made: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its column `system` as first turn."""
    system = row.get("system")
    if system is None or system == "":
        return made
    if not isinstance(system, str):
        raise RowError(f"'system' is {type_name(system)}; give the system turn as a text, or rename the column")
    name = "messages" if "messages" in made else "prompt"
    if made[name] and made[name][0][0] == "system":
        raise RowError(f"'{name}' begins with a system turn, and there is a column 'system' too; remove one")
    first = {name: [("system", text(system, "'system'")), *made[name]]}
    fields = {"fields": json.dumps([{}, *json.loads(made["fields"])], ensure_ascii=False)} if made.get("fields") else {}
    return {**made, **first, **fields}


def _check_no_tools(row: Row, kind: Kind) -> None:
    """Reject tools in tables whose policy does not see them, unless a reward gets them."""
    given = row.get("tools")
    if kind == "chat" or not isinstance(given, list) or not given or not all(map(tool_name, given)):
        return
    if kind != "prompts" or "tools" not in json.loads(_info(row)):
        raise RowError(f"'tools' would be lost: {kind} have no tools; use chat rows, or rename the column")


def layout_names(kind: Kind) -> str:
    """Return the layouts of a table as text for an error."""
    return ", or ".join(" + ".join(layout) for layout in LAYOUTS[kind])


def wanted_columns(kind: Kind) -> frozenset[str]:
    """Return every column that a layout reads."""
    optional = {"answer", "info", "input", "margin", "problem", "split", "subset", "system", "tools", VARIABLES}
    return frozenset(name for layout in LAYOUTS[kind] for name in layout) | optional


def table_of(rows: Sequence[Row], kind: Kind) -> pl.DataFrame:
    """Return converted rows as a frame. The default `problem` is the hash of the prompt."""
    names = [name for name in COLUMNS[kind] if name not in ("id", "split")]
    columns = [_series(name, [row[name] for row in rows], COLUMNS[kind][name]) for name in names]
    for name, dtype in OPTIONAL.get(kind, {}).items():
        values = [row.get(name) for row in rows]
        if any(value is not None for value in values):
            columns.append(pl.Series(name, values, dtype=dtype))
    frame = pl.DataFrame(columns)
    if "problem" not in names or not frame["problem"].null_count():
        return frame
    all_but_last = pl.col("messages").list.head(pl.col("messages").list.len().cast(pl.Int64()).sub(1).clip(0))
    prompt = frame.select(all_but_last.alias("prompt") if kind == "chat" else pl.col("prompt"))
    return frame.with_columns(pl.col("problem").fill_null(content_ids(prompt, ["prompt"])))


def _series(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    if dtype != TURNS:
        return pl.Series(name, values, dtype=dtype)
    # by columns, because polars takes several times as long to make structs of Python's, and Arrow twice the memory
    sizes = [len(turns) for turns in values]
    flat = [turn for turns in values for turn in turns]
    fields = {
        part: pl.Series([turn[index] for turn in flat], dtype=pl.String())
        for index, part in enumerate(("role", "content"))
    }
    turns = pl.DataFrame({"row": np.repeat(np.arange(len(sizes)), sizes), name: pl.DataFrame(fields).to_struct()})
    grouped = turns.group_by("row", maintain_order=True).agg(name)
    rows = pl.DataFrame({"row": np.arange(len(sizes))}).join(grouped, on="row", how="left", maintain_order="left")
    return rows.select(pl.coalesce(name, pl.lit([], dtype=TURNS))).to_series()


def _scalar(row: Row, name: str) -> str | None:
    """Return a text; a number or boolean as in JSON. Reject a number with several notations."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return text(value, f"'{name}'")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float):
        raise RowError(f"'{name}' is {type_name(value)}; give a text or a number")
    if not math.isfinite(value) or value.is_integer():
        raise RowError(f"'{name}' is the number {value}, which has several spellings; write it as a text")
    return repr(value)


def _corpus(row: Row) -> dict[str, Any]:
    return {"text": _plain(row, "text")}


def _messages(row: Row) -> dict[str, Any]:
    return conversation(row, "messages")


def _demonstration(row: Row) -> dict[str, Any]:
    return conversation(row, "prompt", "completion")


def _alpaca(row: Row) -> dict[str, Any]:
    return conversation(
        {**row, "prompt": _instruction(row), "completion": _plain(row, "output")}, "prompt", "completion"
    )


def _instruction(row: Row) -> list[dict[str, Any]]:
    """Return Alpaca's instruction, with its input on the next line."""
    instruction = "\n".join(_plain(row, name) for name in ("instruction", "input") if row.get(name))
    return [{"role": "user", "content": instruction}]


def _plain(row: Row, name: str) -> str:
    if not isinstance(row[name], str):
        raise RowError(f"'{name}' is {type_name(row[name])}; give a text")
    return text(row[name], f"'{name}'")


def _prompt(row: Row) -> dict[str, Any]:
    prompt = {"prompt": turns(row, "prompt"), "answer": _scalar(row, "answer") or ""}
    return {**prompt, "info": _info(row), "task": ""}


def _info(row: Row) -> str:
    """Return extra data for a reward besides the answer, as JSON. In csv files it is a text."""
    value = row.get("info")
    try:
        parsed = json.loads(value) if isinstance(value, str) else {} if value is None else value
        if isinstance(parsed, dict):
            return json.dumps(parsed, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        pass
    raise RowError(f"'info' is {short_repr(value)}; give an object, e.g. {{\"schema\": ...}}, or rename the column")


def _preference(row: Row) -> dict[str, Any]:
    prompt = turns(row, "prompt")
    answers = {name: _after(prompt, turns(row, name), name) for name in ("chosen", "rejected")}
    return {"prompt": prompt, **answers, "margin": _margin(row), "subset": _scalar(row, "subset")}


def _alpaca_preference(row: Row) -> dict[str, Any]:
    return _preference({**row, "prompt": _instruction(row)})


def _implicit_preference(row: Row) -> dict[str, Any]:
    for name in ("chosen", "rejected"):
        if isinstance(row[name], str):
            raise RowError(f"'{name}' is a plain text and 'prompt' is missing; add the prompt")
    chosen, rejected = turns(row, "chosen"), turns(row, "rejected")
    prompt = chosen[:-1]
    return {
        "prompt": prompt,
        "chosen": chosen[-1:],
        "rejected": _after(prompt, rejected, "rejected"),
        "margin": _margin(row),
        "subset": _scalar(row, "subset"),
    }


def _openai_preference(row: Row) -> dict[str, Any]:
    """Return a row of OpenAI's preference fine-tuning. Its conversation and tools are in `input`."""
    given = row["input"]
    if not isinstance(given, dict) or not isinstance(given.get("messages"), list):
        raise RowError(f"'input' is {short_repr(given)}; give {{messages: [...]}}")
    if lost := [name for name in ("tools", "parallel_tool_calls") if given.get(name)]:
        raise RowError(f"'input' has {short_repr(lost[0])}, which would be lost; pairs with tools cannot be trained on")
    answers = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
    for name in answers.values():
        if not isinstance(row[name], list) or len(row[name]) != 1:
            raise RowError(f"'{name}' is {short_repr(row[name])}; give a list of one turn of the assistant")
    named = {"input": given["messages"], **{name: row[name] for name in answers.values()}}
    prompt = turns(named, "input")
    made = {name: turns(named, column) for name, column in answers.items()}
    for name, column in answers.items():
        if made[name][0][0] != "assistant":
            raise RowError(f"the turn of '{column}' has the role {short_repr(made[name][0][0])}; give 'assistant'")
    return {"prompt": prompt, **made, "margin": _margin(row), "subset": _scalar(row, "subset")}


def _judged(row: Row) -> dict[str, Any]:
    prompt = turns(row, "prompt")
    return {
        "prompt": prompt,
        "completion": _after(prompt, turns(row, "completion"), "completion"),
        "label": _label(row["label"], "label"),
    }


def _labelled_steps(row: Row) -> list[dict[str, Any]]:
    """Return a row for each step of PRM800K and similar data: the answer up to the step's end, with its label."""
    prompt, steps, labels = turns(row, "prompt"), row["completions"], row["labels"]
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) and step.strip() for step in steps):
        raise RowError(f"'completions' is {short_repr(steps)}; give a list of texts, one for each step")
    if not isinstance(labels, list) or len(labels) != len(steps):
        raise RowError(f"'labels' is {short_repr(labels)}; give a list of {len(steps)}, one for each step")
    texts = ["\n".join(steps[: index + 1]) for index in range(len(steps))]
    answers = [turns({"prompt": row["prompt"], "completion": part}, "completion") for part in texts]
    return [
        {"prompt": prompt, "completion": answer[-1:], "label": _label(label, "labels")}
        for answer, label in zip(answers, labels, strict=True)
    ]


def _after(prompt: Turns, answer: Turns, name: str) -> Turns:
    """Return the answer's last turn. If it repeats the conversation, the earlier turns must equal the prompt."""
    if len(answer) > 1 and answer[:-1] != prompt:
        raise RowError(f"the turns of '{name}' before its last differ from 'prompt'; give only the answer's turn")
    return answer[-1:]


def _label(value: Any, column: str) -> bool:
    text = value.lower() if isinstance(value, str) else str(value).lower() if isinstance(value, int) else ""
    if text not in _LABELS:
        meaning = f"values: {{{column}: {{up: true, down: false}}}}"
        fix = f"give true/false or 1/0, or map each value to its meaning, e.g. {meaning}"
        raise RowError(f"'{column}' is {short_repr(value)}; {fix}")
    return _LABELS[text]


def _margin(row: Row) -> float:
    """Return by how much the chosen answer is better; 0: unknown. In csv files numbers are texts."""
    value = row.get("margin")
    try:
        if value is None or (isinstance(value, int | float | str) and not isinstance(value, bool)):
            return float(value or 0)
    except (ValueError, OverflowError):
        pass
    raise RowError(f"'margin' is {short_repr(value)}; give a number, or rename the column")


LAYOUTS: Final[dict[Kind, dict[Layout, Callable[[Row], dict[str, Any] | list[dict[str, Any]]]]]] = {
    "corpus": {("text",): _corpus},
    "chat": {
        ("messages",): _messages,
        ("prompt", "completion"): _demonstration,
        ("conversations",): sharegpt,
        ("instruction", "output"): _alpaca,
    },
    "prompts": {("prompt",): _prompt},
    "pairs": {
        ("prompt", "chosen", "rejected"): _preference,
        ("instruction", "chosen", "rejected"): _alpaca_preference,
        ("chosen", "rejected"): _implicit_preference,
        ("input", "preferred_output", "non_preferred_output"): _openai_preference,
    },
    "feedback": {("prompt", "completion", "label"): _judged, ("prompt", "completions", "labels"): _labelled_steps},
    "rollouts": {},
}
"""Table -> its layouts. A row is read with the first layout whose columns it has."""
