"""The lengths of a table's rows in tokens, per part, as text and as data for `dvc plots show`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from posttrain.data.columns import Kind
from posttrain.errors import DataError
from posttrain.files import write_json
from posttrain.models.files.store import load_stop_tokens, load_tokenizer
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import model_path, table_path
from posttrain.rollout import TokenRow
from posttrain.settings.params import did_you_mean
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation, row_variables
from posttrain.train.examples import Examples, RowLimit
from posttrain.train.token_cache import Array, mapped_rows
from posttrain.train.tokenize_tables import comparisons, demonstrations, documents, feedback

BINS: Final = 16
BAR: Final = 40
QUANTILES: Final = (0.5, 0.9, 0.99)
LIMITS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
"""Common values of max_tokens."""
_WHOLE: Final = RowLimit(max_tokens=10**9)


def token_counts(table: str, model: str, plot: Path | None) -> str:
    """Return the rows' lengths with a model's tokenizer: quantiles, rows above common limits, a histogram."""
    parts = _lengths(table, model)
    first, *rest = parts.values()
    total = first + np.max(rest, axis=0) if rest else first  # max_tokens limits a prompt with each of its answers
    tokens = sum(int(sizes.sum()) for sizes in parts.values())
    lines = [f"{table} with the tokenizer of {model}: {len(total):,} rows, {tokens:,} tokens"]
    heads = ("mean", "min", *(f"{quantile:.0%}" for quantile in QUANTILES), "max")
    lines.append(f"{'':<12}" + "".join(f"{head:>9}" for head in heads))
    whole = {"row": total} if len(parts) > 1 else {}
    for name, sizes in {**parts, **whole}.items():
        numbers = [sizes.mean(), sizes.min(), *np.quantile(sizes, QUANTILES, method="higher"), sizes.max()]
        lines.append(f"{name:<12}" + "".join(f"{number:>9,.0f}" for number in numbers))
    beyond = [(limit, int((total > limit).sum())) for limit in LIMITS if total.min() <= limit < total.max()]
    lines += [f"{count:,} rows ({count / len(total):.1%}) have more than {limit:,} tokens" for limit, count in beyond]
    counts, edges = np.histogram(total, bins=_edges(total))
    lines += _bars(counts, edges)
    if plot is not None:
        lines.append(_write_plot(plot, table, parts, edges))
    return "\n".join(lines)


def _lengths(table: str, model: str) -> dict[str, Array]:
    """Return the number of tokens of each row of a table, by part."""
    kind = table.rpartition("/")[2]
    if kind not in _READERS:
        fix = did_you_mean(kind, list(_READERS))
        raise DataError(what=f"'{table}' is not a table such as mine/chat", where="tokens", fix=fix)
    folder = model_path(model) if model_path(model).is_dir() else Path(model)
    text = ChatText(load_tokenizer(folder), str(folder), load_stop_tokens(folder))
    known: Kind = kind  # type: ignore[assignment]
    return _READERS[kind](text, read_table(table_path(table), known), table)


def _chat(text: ChatText, frame: pl.DataFrame, where: str) -> dict[str, Array]:
    rows = demonstrations(text, frame, _WHOLE, where, "all").rows
    return {"prompt": rows.prompt_sizes, "rest": rows.rest_sizes}  # the rest may hold turns of the user too


def _feedback(text: ChatText, frame: pl.DataFrame, where: str) -> dict[str, Array]:
    return _sizes(feedback(text, frame, _WHOLE, where))


def _sizes(examples: Examples) -> dict[str, Array]:
    return {"prompt": examples.rows.prompt_sizes, "completion": examples.rows.rest_sizes}


def _pairs(text: ChatText, frame: pl.DataFrame, where: str) -> dict[str, Array]:
    rows = comparisons(text, frame, _WHOLE, where).rows
    return {"prompt": rows.prompt_sizes[::2], "chosen": rows.rest_sizes[::2], "rejected": rows.rest_sizes[1::2]}


def _prompts(text: ChatText, frame: pl.DataFrame, where: str) -> dict[str, Array]:  # noqa: ARG001
    def encode(rows: Sequence[Mapping[str, Any]]) -> list[list[TokenRow]]:
        asked = [Conversation(row["prompt"], variables=row_variables(row)) for row in rows]
        return [[TokenRow(ids, [])] for ids in text.prompts(asked)]

    return {"prompt": mapped_rows(text, frame, encode, "prompts").prompt_sizes}


def _corpus(text: ChatText, frame: pl.DataFrame, where: str) -> dict[str, Array]:
    return {"text": documents(text, frame, where).rest_sizes}


def _edges(total: Array) -> Array:
    """Return the edges of bins with whole token widths, from 0 to above the longest row."""
    width = int(total.max()) // BINS + 1
    return np.arange(BINS + 1) * width


def _bars(counts: Array, edges: Array) -> list[str]:
    """Return a text histogram without empty bins at the end."""
    last = int(np.flatnonzero(counts)[-1]) + 1
    lines = []
    for count, low, high in zip(counts[:last], edges[:last], edges[1:], strict=False):
        bar = "#" * int(np.ceil(BAR * count / counts.max()))
        lines.append(f"{low:>8,} - {high - 1:<8,}{count:>10,}  {bar}".rstrip())
    return lines


def _write_plot(file: Path, table: str, parts: Mapping[str, Array], edges: Array) -> str:
    """Write the rows per bin of each part for DVC's template `curves`. Return a line about the file."""
    rows = [
        {"run": table, "metric": name, "tokens": int(low), "rows": int(count)}
        for name, sizes in parts.items()
        for count, low in zip(np.histogram(sizes, bins=edges)[0], edges[:-1], strict=True)
    ]
    write_json(file, rows)
    return f"{file} holds the histogram of each part: dvc plots show {file} -t curves -x tokens -y rows"


_READERS: Final[Mapping[str, Callable[[ChatText, pl.DataFrame, str], dict[str, Array]]]] = {
    "corpus": _corpus,
    "chat": _chat,
    "prompts": _prompts,
    "pairs": _pairs,
    "feedback": _feedback,
}
