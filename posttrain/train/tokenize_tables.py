"""Checked tables as examples of token ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.errors import DataError
from posttrain.measure.phases import phase
from posttrain.rollout import TokenRow
from posttrain.text.chat import ChatText, Trained
from posttrain.text.chat_template import Conversation
from posttrain.train.epochs import Example

Record = Mapping[str, Any]


def conversation(row: Record, where: str) -> Conversation:
    """A row of a chat table with its tool use."""
    messages = row["messages"]
    if row.get("fields"):
        messages = [{**turn, **more} for turn, more in zip(messages, json.loads(row["fields"]), strict=True)]
    tools = json.loads(row["tools"]) if row.get("tools") else None
    return Conversation(messages, tools, f"{where} id {row['id']}")


@phase("load")
def demonstrations(text: ChatText, rows: Iterable[Record], longest: int, where: str, turns: Trained) -> list[Example]:
    """Chat rows, trained on all turns of the assistant or the last; longer rows are left out, and counted."""
    encoded = text.conversations([conversation(row, where) for row in rows], turns)
    examples = [Example([one]) for one in encoded]
    return _short(examples, longest, where)


@phase("load")
def comparisons(text: ChatText, rows: Iterable[Record], longest: int, where: str) -> list[Example]:
    """Pair rows: the chosen answer, then the rejected one."""
    examples, kept = [], list(rows)
    encoded = text.exchanges([(row["prompt"], row[side]) for row in kept for side in ("chosen", "rejected")])
    for row, chosen, rejected in zip(kept, encoded[::2], encoded[1::2], strict=True):
        examples.append(
            Example(
                [chosen, replace(rejected, prompt=chosen.prompt)],
                {"side": [1.0, -1.0], "margin": [row["margin"]] * 2},
            )
        )
    return _short(examples, longest, where)


@phase("load")
def feedback(text: ChatText, rows: Iterable[Record], longest: int, where: str) -> list[Example]:
    """Unpaired rows: an answer and whether it was liked."""
    kept = list(rows)
    examples = [
        Example([one], {"label": [1.0 if row["label"] else -1.0]})
        for row, one in zip(kept, _judged(text, kept), strict=True)
    ]
    return _short(examples, longest, where)


@phase("load")
def rankings(text: ChatText, rows: Iterable[Record], longest: int, where: str) -> list[Example]:
    """Judged answers, prompt by prompt: the liked ones rank 0, the others 1; prompts of one kind only are left out."""
    answers: dict[str, list[tuple[TokenRow, float]]] = {}
    kept = list(rows)
    for row, one in zip(kept, _judged(text, kept), strict=True):
        answers.setdefault(str(one.prompt), []).append((one, 0.0 if row["label"] else 1.0))
    examples = [
        Example([one for one, _ in mine], {"rank": [rank for _, rank in mine]})
        for mine in answers.values()
        if len({rank for _, rank in mine}) == 2
    ]
    return _short(examples, longest, where)


@phase("load")
def windows(text: ChatText, documents: Sequence[str], width: int, where: str) -> list[Example]:
    """Documents one after the other, each ended by the stop token, cut into windows of width + 1 tokens."""
    stream = [token for ids in (text.plain(documents) if documents else []) for token in (*ids, text.stop)]
    if len(stream) <= width:
        what = f"the {len(documents)} documents of a split have {len(stream)} tokens, fewer than window = {width}"
        raise DataError(what=what, where=where, fix="Give more text, or lower the run's `window`")
    starts = range(0, len(stream) - width, width)
    return [Example([TokenRow([], stream[start : start + width + 1])]) for start in starts]


def _judged(text: ChatText, rows: Sequence[Record]) -> list[TokenRow]:
    return text.exchanges([(row["prompt"], row["completion"]) for row in rows])


def _short(examples: list[Example], longest: int, where: str) -> list[Example]:
    if not examples:
        raise DataError(what="a split has no rows to train on", where=where, fix="Give it rows")
    sizes = (max(map(len, example.rows)) for example in examples)
    kept = [example for example, size in zip(examples, sizes, strict=True) if size <= longest]
    if not kept:
        fix = "Raise max_tokens or shorten the data"
        raise DataError(what=f"all {len(examples)} rows are longer than max_tokens = {longest}", where=where, fix=fix)
    if len(kept) < len(examples):
        print(
            f"{where}: {len(examples) - len(kept)} of {len(examples)} rows are longer than {longest} tokens: left out"
        )
    return kept
