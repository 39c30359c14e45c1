"""`posttrain preview`: rows on the terminal or as a page, with trained text in colour."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from posttrain.data.shown import printable
from posttrain.files import write_text
from posttrain.pipeline.commands.preview.inputs import Subject, opened
from posttrain.pipeline.commands.preview.page import page
from posttrain.pipeline.commands.preview.rows import COUNTED, LISTED, Counts, Part, Shown, preview_rows
from posttrain.text.chat import ChatText, Trained

Style = Literal["colour", "plain"]
Stretch = tuple[str, bool]
"""Text, and whether its tokens are trained."""


def preview(
    table: str, model: str, *, rows: int, style: Style, html: Path | None, turns: Trained | None, longest: int | None
) -> str:
    """Return rows and counts as text. If `html` is a file, write them as a page too."""
    with opened(table, model, turns, longest) as subject:
        first, counts = preview_rows(subject, rows)
        facts = _facts(subject, counts)
        stretches = [[_stretches(subject.text, part) for part in row.parts] for row in first]
    if html is not None:
        named = [
            (_title(row), [(part.name, part_stretches) for part, part_stretches in zip(row.parts, parts, strict=True)])
            for row, parts in zip(first, stretches, strict=True)
        ]
        write_text(html, page(printable(str(subject.table)), facts, named))
        return "\n".join([*facts, f"{len(first)} rows are shown in {html}"])
    legend = "trained text is green" if style == "colour" else "trained text is between {+ and +}"
    shown = [line for row, parts in zip(first, stretches, strict=True) for line in _lines(row, parts, style)]
    return "\n".join([*facts, f"first {len(first)} rows, {legend}:", *shown])


def _facts(subject: Subject, counts: Counts) -> list[str]:
    """Return row and token counts as lines."""
    limits = subject.limits
    splits = ", ".join(f"{count:,} {name}" for name, count in counts.splits.items())
    lines = [f"{printable(str(subject.table))}: {counts.total:,} rows{f' ({splits})' if splits else ''}"]
    of = f", the first {COUNTED:,} rows" if counts.total > COUNTED else ""
    lines.append(f"tokenizer and chat template: {printable(subject.model)}{of}")
    set_to = [f"max_tokens = {limits.longest:,}"] if limits.longest is not None else []
    set_to += ["long_rows: cut"] if limits.long_rows == "cut" else []
    set_to += [f"context of the model {limits.context:,}"] if limits.context is not None else []
    set_to += [f"turns: {limits.turns}"] if subject.kind == "chat" else []
    lines += [f"limits: {', '.join(set_to)}"] if set_to else []
    if counts.lengths:
        middle, most = statistics.median(counts.lengths), max(counts.lengths)
        per = "longer side of a pair" if subject.kind == "pairs" else "row"
        lines.append(
            f"tokens: {counts.tokens:,}; per {per} least {min(counts.lengths):,}, median {middle:g}, most {most:,}"
        )
        trained_text = "none, the policy continues the prompts" if subject.kind == "prompts" else f"{counts.trained:,}"
        lines.append(f"trained tokens: {trained_text}")
    if counts.cut:
        lines.append(f"{counts.cut:,} rows are cut at {limits.longest:,} tokens (long_rows: cut)")
    for row in counts.dropped[:LISTED]:
        lines.append(f"row {row.number:,} (id {row.id}): {printable(row.dropped)}")
    if len(counts.dropped) > LISTED:
        lines.append(f"and {len(counts.dropped) - LISTED:,} more rows that are left out, too long or refused")
    if not counts.dropped:
        lines.append("no row is left out")
    return lines


def _title(row: Shown) -> str:
    size = ", ".join(f"{part.name} {len(part.row):,} tokens, {part.trained:,} trained" for part in row.parts)
    trained_text = "; ".join(filter(None, (size, row.cut, row.dropped)))
    return printable(f"row {row.number:,}, id {row.id}{f', {row.split}' * bool(row.split)}: {trained_text}")


def _stretches(text: ChatText, part: Part) -> list[Stretch]:
    """Return the text of a part, split where training begins or ends."""
    ids = [*part.row.prompt, *part.row.rest]
    trained_places = {len(part.row.prompt) + place for place in part.row.trained}
    stretches, done = [], 0
    for trained, some in groupby(range(len(ids)), trained_places.__contains__):
        end = done + len(list(some))
        before, whole = text.stops.decode(ids[:done]), text.stops.decode(ids[:end])
        # some tokenizers drop a space where a text begins, so a stretch is what it adds to the text before it
        stretches.append(
            (whole[len(before) :] if whole.startswith(before) else text.stops.decode(ids[done:end]), trained)
        )
        done = end
    return stretches


def _lines(row: Shown, parts: Sequence[Sequence[Stretch]], style: Style) -> Iterator[str]:
    yield f"\n--- {_title(row)}"
    for part, stretches in zip(row.parts, parts, strict=True):
        if len(row.parts) > 1:
            yield f"[{part.name}]"
        yield "".join(_marked(text, style) if trained else escaped(text) for text, trained in stretches)


def _marked(text: str, style: Style) -> str:
    if style == "plain":
        return f"{{+{escaped(text)}+}}"
    return "\n".join(f"\033[32m{line}\033[0m" if line else line for line in escaped(text).split("\n"))


def escaped(text: str) -> str:
    """Return the text with control characters escaped, except line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))
