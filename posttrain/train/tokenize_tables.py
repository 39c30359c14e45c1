"""Turn checked tables into examples of token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from posttrain.data.turns import WEIGHT
from posttrain.errors import DataError
from posttrain.measure.phases import phase
from posttrain.rollout import TokenRow
from posttrain.text.chat import ChatText, Trained
from posttrain.text.chat_template import Conversation, row_variables
from posttrain.train.examples import Examples, RowLimit, make_examples
from posttrain.train.token_cache import Array, MappedRows, mapped_rows

TableRow = Mapping[str, Any]


def conversation(row: TableRow, where: str) -> Conversation:
    """Return a row of a chat table as a conversation, including tool use."""
    messages, untrained = row["messages"], frozenset[int]()
    if row.get("fields"):
        fields = json.loads(row["fields"])
        untrained = frozenset(index for index, more in enumerate(fields) if more.pop(WEIGHT, 1) == 0)
        messages = [{**turn, **more} for turn, more in zip(messages, fields, strict=True)]
    tools = json.loads(row["tools"]) if row.get("tools") else None
    return Conversation(messages, tools, f"{where} id {row['id']}", untrained, row_variables(row))


def exchanges(text: ChatText, rows: Sequence[TableRow], answer: str) -> list[TokenRow]:
    """Return table rows as tokens: the prompt and the answer in this column."""
    whole = [Conversation([*row["prompt"], *row[answer]], variables=row_variables(row)) for row in rows]
    return text.conversations(whole, "last")


@phase("load")
def demonstrations(text: ChatText, frame: pl.DataFrame, limit: RowLimit, where: str, turns: Trained) -> Examples:
    """Return chat rows as examples, trained on all assistant turns or only the last."""

    def encode(rows: Sequence[TableRow]) -> list[list[TokenRow]]:
        return text.split_conversations([conversation(row, where) for row in rows], turns)

    examples = make_examples(_rows(text, frame, encode, f"demonstrations, {turns}", where))
    if len(examples.places) > len(examples):
        several = f"{int((np.diff(examples.starts) > 1).sum()):,} of {len(examples):,} conversations"
        rows = f"{len(examples.places):,} rows in all, because the chat template changes earlier turns"
        print(f"{where}: {several} are several rows each, {rows}")
    return examples.limited(limit, where, text.context)


@phase("load")
def comparisons(text: ChatText, frame: pl.DataFrame, limit: RowLimit, where: str) -> Examples:
    """Return pair rows as examples: the chosen, then the rejected answer, each after the same prompt."""

    def encode(rows: Sequence[TableRow]) -> list[list[TokenRow]]:
        encoded = [exchanges(text, rows, side) for side in ("chosen", "rejected")]
        return [[row, replace(other, prompt=row.prompt)] for row, other in zip(*encoded, strict=True)]

    columns = {"side": np.tile([1.0, -1.0], frame.height), "margin": frame["margin"].to_numpy().repeat(2)}
    return make_examples(_rows(text, frame, encode, "comparisons", where), columns).limited(limit, where, text.context)


@phase("load")
def feedback(text: ChatText, frame: pl.DataFrame, limit: RowLimit, where: str) -> Examples:
    """Return unpaired rows as examples: an answer, and a label (liked or not)."""
    labels = np.where(frame["label"].to_numpy(), 1.0, -1.0)
    return make_examples(_completions(text, frame, where), {"label": labels}).limited(limit, where, text.context)


@phase("load")
def rankings(text: ChatText, frame: pl.DataFrame, limit: RowLimit, where: str) -> Examples:
    """Return each prompt's answers, rank 0 for liked and 1 for others. Prompts with only one label are dropped."""
    rows = _completions(text, frame, where)
    liked = frame["label"].to_numpy()
    answers: dict[bytes, list[int]] = {}
    for place in range(frame.height):
        answers.setdefault(rows.prompt_bytes(place), []).append(place)
    compared = [
        answer_places for answer_places in answers.values() if len({bool(liked[place]) for place in answer_places}) == 2
    ]
    if len(compared) < len(answers):
        few = f"{len(answers) - len(compared):,} of {len(answers):,} prompts"
        print(f"{where}: {few} have answers of only one label: dropped")
    places = np.array([place for answer_places in compared for place in answer_places], dtype=np.int64)
    starts = np.cumsum([0, *map(len, compared)])
    ranked = Examples(rows, places, starts, {"rank": np.where(liked[places], 0.0, 1.0)})
    return ranked.limited(limit, where, text.context)


@phase("load")
def windows(text: ChatText, frame: pl.DataFrame, width: int, where: str) -> Examples:
    """Return concatenated documents, each with a stop token at its end, as windows of width + 1 tokens."""
    if text.context is not None and width + 1 > text.context:
        what = f"windows of {width} tokens plus the next token are longer than the model's context of {text.context}"
        raise DataError(what=what, where=where, fix="Lower the run's `window`")
    stream = documents(text, frame, where).stream()
    if len(stream) <= width:
        what = f"the {frame.height} documents of a split have {len(stream)} tokens, fewer than window = {width}"
        raise DataError(what=what, where=where, fix="Give more text, or lower the run's `window`")
    if left := (len(stream) - 1) % width:
        print(f"{where}: the last {left:,} of {len(stream):,} tokens do not fill a window: dropped")
    return make_examples(_Windows(stream, width))


def documents(text: ChatText, frame: pl.DataFrame, where: str) -> MappedRows:
    """Return corpus rows, each with a stop token at its end."""

    def encode(rows: Sequence[TableRow]) -> list[list[TokenRow]]:
        return [[TokenRow([], [*ids, text.stop])] for ids in text.plain([row["text"] for row in rows])]

    return _rows(text, frame, encode, "documents", where)


class _Windows:
    """Windows of a stream. Two adjacent windows share a token: the last of one is the first of the next."""

    def __init__(self, stream: Array, width: int) -> None:
        self._stream, self._width = stream, width
        starts = np.arange(0, len(stream) - width, width)
        self.prompt_sizes, self.rest_sizes = np.zeros_like(starts), np.full_like(starts, width + 1)
        self.starts = np.arange(len(starts) + 1)

    def row(self, place: int) -> TokenRow:
        """Return one window."""
        start = place * self._width
        return TokenRow([], self._stream[start : start + self._width + 1].tolist())


def _completions(text: ChatText, frame: pl.DataFrame, where: str) -> MappedRows:
    def encode(rows: Sequence[TableRow]) -> list[list[TokenRow]]:
        return [[row] for row in exchanges(text, rows, "completion")]

    return _rows(text, frame, encode, "judged", where)


def _rows(text: ChatText, frame: pl.DataFrame, encode: Any, how: str, where: str) -> MappedRows:
    if frame.is_empty():
        fix = "Give rows for both splits (heldout_share, or a column `split`)"
        raise DataError(what="it has no rows in split train or none in split heldout", where=where, fix=fix)
    return mapped_rows(text, frame, encode, how)
