"""The rows of a table as training sees them: tokens, trained positions, and rows that are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from posttrain.data.columns import Kind
from posttrain.errors import DataError
from posttrain.pipeline.commands.preview.inputs import Limits, Subject
from posttrain.pipeline.tables.store import read_table
from posttrain.rollout import TokenRow
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, row_variables
from posttrain.train.examples import shortened
from posttrain.train.tokenize_tables import conversation, exchanges

COUNTED = 10_000
"""The number of rows that are tokenised for the counts."""
LISTED = 5
_TOGETHER = 256

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """Tokens that form one sequence in training."""

    name: str
    row: TokenRow
    trained: int


@dataclass(frozen=True)
class Shown:
    """One row of the table."""

    number: int
    id: str
    split: str
    parts: Sequence[Part]
    """The parts as training sees them; cut if the run cuts long rows."""
    tokens: int = 0
    """Its tokens before a cut. With several parts, the tokens of the longest, to which limits apply."""
    dropped: str = ""
    """Why training leaves the row out or stops with an error; empty if neither."""
    cut: str = ""
    """Why training cuts the row; empty if it does not."""


@dataclass
class Counts:
    """Counts over all rows that were tokenised."""

    total: int
    splits: dict[str, int]
    lengths: list[int] = field(default_factory=list)
    """The longest part of each row. Chosen and rejected are two parts, and `max_tokens` applies to each."""
    tokens: int = 0
    """The tokens of all parts."""
    trained: int = 0
    """The trained tokens of rows that are not left out."""
    dropped: list[Shown] = field(default_factory=list)
    cut: int = 0

    def add(self, row: Shown) -> None:
        """Count a row."""
        if row.parts:
            self.lengths.append(row.tokens)
            self.tokens += sum(len(part.row) for part in row.parts)
        self.cut += bool(row.cut and not row.dropped)
        if row.dropped:
            self.dropped.append(row)
        else:
            self.trained += sum(part.trained for part in row.parts)


def preview_rows(subject: Subject, rows: int) -> tuple[list[Shown], Counts]:
    """Return the first rows of the table, and counts over all (in a long table, over the first 10,000)."""
    frame = read_table(subject.table, subject.kind)
    if subject.kind == "rollouts":
        frame = frame.filter(pl.col("prompt").is_not_null())
        if frame.is_empty():
            what, fix = "it has no text (evaluate.settings.completions: none)", "Evaluate with `sampled` or `full`"
            raise DataError(what=what, where=str(subject.table), fix=fix)
    splits = dict(frame["split"].value_counts(sort=True).iter_rows()) if "split" in frame.columns else {}
    counts, first = Counts(frame.height, splits), []
    for shown in _tokenised(subject, frame.head(COUNTED)):
        counts.add(shown)
        if shown.number <= rows:
            first.append(shown)
    return first, counts


def _tokenised(subject: Subject, frame: pl.DataFrame) -> Iterator[Shown]:
    number = 0
    for batch in frame.iter_slices(_TOGETHER):
        records = list(batch.iter_rows(named=True))
        try:
            tokenised: list[list[Part] | DataError] = list(_parts(subject, records))
        except DataError:  # one of them is refused: tokenise them one by one to find it
            tokenised = [_alone(subject, record) for record in records]
        for record, parts in zip(records, tokenised, strict=True):
            number += 1
            place = {"number": number, "id": record["id"], "split": record.get("split", "")}
            if isinstance(parts, DataError):
                yield Shown(**place, parts=(), dropped=f"refused, which stops the run: {parts}")
            else:
                yield Shown(**place, **_limited(parts, subject.kind, subject.limits))


def _alone(subject: Subject, record: Record) -> list[Part] | DataError:
    try:
        return next(_parts(subject, [record]))
    except DataError as error:
        return error


def _limited(parts: Sequence[Part], kind: Kind, limits: Limits) -> dict[str, Any]:
    """Return the parts as training sees them, their length, and whether they are cut or left out."""
    tokens = max(len(part.row) for part in parts)
    shown: dict[str, Any] = {"parts": parts, "tokens": tokens}
    if kind == "corpus":
        return shown  # documents are joined and cut into windows
    length = tokens
    if limits.longest is not None and kind not in ("completions", "rollouts") and tokens > limits.longest:
        longer = f"{tokens:,} tokens, longer than max_tokens = {limits.longest:,}"
        if limits.long_rows == "drop" or kind == "prompts":
            return {**shown, "dropped": f"left out: {longer}"}
        short = [_part(part.name, shortened(part.row, limits.longest)) for part in parts]
        if not all(part.trained for part in short):
            return {**shown, "dropped": f"left out: {longer}, and no answer would be left of it"}
        shown |= {"parts": short, "cut": f"cut: {longer}"}
        length = max(len(part.row) for part in short)
    if limits.context is not None and length > limits.context:
        shown["dropped"] = f"left out: {length:,} tokens, longer than the model's context of {limits.context:,}"
    return shown


def _parts(subject: Subject, records: Sequence[Record]) -> Iterator[list[Part]]:
    """Return the parts of each row."""
    text = subject.text
    match subject.kind:
        case "corpus":
            rows = [TokenRow([], [*ids, text.stop]) for ids in text.plain([record["text"] for record in records])]
            return ([_part("document", row)] for row in rows)
        case "chat":
            talks = [conversation(record, str(subject.table)) for record in records]
            several = text.split_conversations(talks, subject.limits.turns)
            return (
                [
                    _part(f"row {index} of {len(rows)}" if len(rows) > 1 else "conversation", row)
                    for index, row in enumerate(rows, 1)
                ]
                for rows in several
            )
        case "prompts":
            return (
                [Part("prompt", TokenRow(ids, []), 0)] for ids in text.prompts([_prompt(record) for record in records])
            )
        case "pairs":
            sides = {name: _answered(text, records, name) for name in ("chosen", "rejected")}
            return ([_part(name, rows[index]) for name, rows in sides.items()] for index in range(len(records)))
        case "feedback":
            named = ["liked" if record["label"] else "not liked" for record in records]
            rows = _answered(text, records, "completion")
            return ([_part(name, row)] for name, row in zip(named, rows, strict=True))
        case "rollouts":
            prompts = text.prompts([record["prompt"] for record in records])
            return (
                [_part(f"sample {record['sample']}", TokenRow(ids, record["completion_ids"], record["mask"]))]
                for record, ids in zip(records, prompts, strict=True)
            )
        case "completions" | "training_rollouts":
            rows = [
                TokenRow(record["prompt_ids"] or [], record["completion_ids"] or [], record["mask"])
                for record in records
            ]
            return ([_part(f"sample {record['sample']}", row)] for record, row in zip(records, rows, strict=True))
        case "matches" | "regraded":
            fix = "Preview results/LABEL/rollouts.parquet"
            raise DataError(what=f"rows of {subject.kind} have no text", where=str(subject.table), fix=fix)
        case "documents":
            texts = [record["prompt"] + record["response"] for record in records]
            return ([_part("document", TokenRow([], ids))] for ids in text.plain(texts))


def _answered(text: ChatText, records: Sequence[Record], name: str) -> list[TokenRow]:
    return exchanges(text, records, name)


def _prompt(record: Record) -> Conversation:
    return Conversation(record["prompt"], variables=row_variables(record))


def _part(name: str, row: TokenRow) -> Part:
    return Part(name, row, len(row.trained))
