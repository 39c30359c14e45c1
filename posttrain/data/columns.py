"""The columns of every table: order and types; and the id of a row, which is a hash of its content.

Equal content has the same id in every run, table and machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, get_args

import polars as pl

from posttrain.errors import TableError

Kind = Literal[
    "corpus",
    "chat",
    "prompts",
    "pairs",
    "feedback",
    "completions",
    "rollouts",
    "training_rollouts",
    "regraded",
    "matches",
    "documents",
]
Split = Literal["train", "heldout", "test"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Tables = dict[Kind, pl.DataFrame]
ROLES: Final = ("system", "user", "assistant", "tool")
TURN: Final = pl.Struct({"role": pl.String(), "content": pl.String()})
SCORE: Final = pl.Struct({"name": pl.String(), "value": pl.Float64(), "status": pl.String()})
TURNS: Final = pl.List(TURN)

CONTROL: Final = r"[\x00-\x08\x0e-\x1f\x7f]"
"""Control characters. No text may contain them."""
TEXT_LIMIT: Final = 1_000_000
"""The longest text of a cell in characters. A longer one is probably a whole file."""

ROLLOUT_STEPS: Final = {"turn_rewards": pl.List(pl.Float64()), "info": pl.String()}
"""Columns of multi-turn rollouts: the task's reward per turn, and the data that its steps reported, as JSON."""

COLUMNS: Final[dict[Kind, dict[str, pl.DataType]]] = {
    "corpus": {"id": pl.String(), "split": pl.String(), "text": pl.String()},
    "chat": {"id": pl.String(), "split": pl.String(), "problem": pl.String(), "messages": TURNS},
    "prompts": {
        "id": pl.String(),
        "split": pl.String(),
        "problem": pl.String(),
        "prompt": TURNS,
        "answer": pl.String(),
        "info": pl.String(),
        "task": pl.String(),
    },
    "pairs": {
        "id": pl.String(),
        "split": pl.String(),
        "problem": pl.String(),
        "prompt": TURNS,
        "chosen": TURNS,
        "rejected": TURNS,
        "margin": pl.Float64(),
    },
    "feedback": {
        "id": pl.String(),
        "split": pl.String(),
        "problem": pl.String(),
        "prompt": TURNS,
        "completion": TURNS,
        "label": pl.Boolean(),
    },
    "completions": {
        "id": pl.String(),
        "prompt_id": pl.String(),
        "sample": pl.Int64(),
        "greedy": pl.Boolean(),
        "prompt_ids": pl.List(pl.Int64()),
        "completion": pl.String(),
        "completion_ids": pl.List(pl.Int64()),
        "mask": pl.List(pl.Boolean()),
        "logps": pl.List(pl.Float32()),
        "turns": pl.String(),
        "finish": pl.String(),
        "reason": pl.String(),
        **ROLLOUT_STEPS,
        "gain": pl.Float64(),
    },
    "rollouts": {
        "id": pl.String(),
        "prompt_id": pl.String(),
        "problem": pl.String(),
        "policy": pl.String(),
        "sample": pl.Int64(),
        "greedy": pl.Boolean(),
        "prompt": TURNS,
        "answer": pl.String(),
        "task": pl.String(),
        "completion": pl.String(),
        "completion_ids": pl.List(pl.Int64()),
        "mask": pl.List(pl.Boolean()),
        "logps": pl.List(pl.Float32()),
        "truncated": pl.Boolean(),
        "reward": pl.Float64(),
        "status": pl.String(),
        "scores": pl.List(SCORE),
    },
    "training_rollouts": {
        "id": pl.String(),
        "prompt_id": pl.String(),
        "problem": pl.String(),
        "task": pl.String(),
        "round": pl.Int64(),
        "attempt": pl.Int64(),
        "draw": pl.Int64(),
        "sample": pl.Int64(),
        "step": pl.Int64(),
        "version": pl.String(),
        "seed": pl.Int64(),
        "sampling": pl.String(),
        "prompt_ids": pl.List(pl.Int64()),
        "completion": pl.String(),
        "completion_ids": pl.List(pl.Int64()),
        "mask": pl.List(pl.Boolean()),
        "logps": pl.List(pl.Float32()),
        "length": pl.Int64(),
        "logp": pl.Float64(),
        "finish": pl.String(),
        "reward": pl.Float64(),
        "outcome": pl.Float64(),
        "scores": pl.List(SCORE),
        "advantage": pl.Float64(),
        **ROLLOUT_STEPS,
    },
    "regraded": {
        "id": pl.String(),
        "rollout": pl.String(),
        "prompt_id": pl.String(),
        "round": pl.Int64(),
        "step": pl.Int64(),
        "before": pl.Float64(),
        "reward": pl.Float64(),
        "status": pl.String(),
        "scores": pl.List(SCORE),
    },
    "matches": {
        "id": pl.String(),
        "place": pl.Int64(),
        "prompt_id": pl.String(),
        "first": pl.String(),
        "second": pl.String(),
        "sample": pl.Int64(),
        "first_length": pl.Int64(),
        "second_length": pl.Int64(),
        "margin": pl.Float64(),
        "win": pl.Float64(),
        "status": pl.String(),
    },
    "documents": {
        "id": pl.String(),
        "task": pl.String(),
        "doc": pl.Int64(),
        "filter": pl.String(),
        "prompt": pl.String(),
        "target": pl.String(),
        "response": pl.String(),
        "read": pl.String(),
        "scores": pl.List(SCORE),
    },
}

TOOL_USE: Final = ("fields", "tools")
"""Columns of a chat table with tool use, as JSON: each turn's fields besides role and content (a list with an object
per turn), and the available tools. Null in other rows."""

VARIABLES: Final = "chat_template_kwargs"
"""A column of the user's tables: extra variables of a row for the chat template, as JSON. Null in other rows."""

ROLLOUT_TEXT: Final = ("prompt", "answer", "completion", "completion_ids", "mask", "logps")
"""Columns of rollouts that contain text; all null in rows without stored text."""
ROLLOUT_FIGURES: Final = {"length": pl.Int64(), "logp": pl.Float64()}
"""The columns of such tables instead: the number of sampled tokens, and the sum of their log-probs."""
TRAINING_TEXT: Final = ("prompt_ids", "completion", "completion_ids", "mask", "logps", "info")
"""The same columns in training_rollouts. Every row has its other columns."""
TRAINING_TOKENS: Final = ("prompt_ids", "completion_ids", "mask", "logps")

DRAWN_FROM: Final = ("kept_ids", "kept_counts")
"""Columns of training_rollouts if the policy was sampled with top_p or top_k: the tokens that each token was drawn
from, and their number. They count as text."""
DRAWN_FROM_TYPE: Final = pl.List(pl.Int32())

OPTIONAL: Final[dict[Kind, dict[str, pl.DataType]]] = {
    "chat": {"score": pl.Float64(), **dict.fromkeys((*TOOL_USE, VARIABLES), pl.String())},
    "prompts": {VARIABLES: pl.String()},
    "pairs": {"subset": pl.String(), VARIABLES: pl.String()},
    "feedback": {VARIABLES: pl.String()},
    "rollouts": {**ROLLOUT_FIGURES, **ROLLOUT_STEPS},
    "training_rollouts": dict.fromkeys(DRAWN_FROM, DRAWN_FROM_TYPE),
}
"""Last columns that only some tables have: in chat, the reward of a policy's own sample and tool use; in pairs, the
part of a benchmark."""

CONTENT: Final[dict[Kind, tuple[str, ...]]] = {
    "corpus": ("text",),
    "chat": ("messages",),
    "prompts": ("answer", "prompt"),
    "pairs": ("chosen", "prompt", "rejected"),
    "feedback": ("completion", "label", "prompt"),
    "completions": ("completion_ids", "greedy", "prompt_id", "sample"),
    "rollouts": ("completion_ids", "greedy", "policy", "prompt_id", "sample"),
    "training_rollouts": ("completion_ids", "draw", "prompt_id", "sample", "version"),
    "regraded": ("rollout",),
    "matches": ("first", "prompt_id", "sample", "second"),
    "documents": ("doc", "filter", "prompt", "response", "task"),
}
"""The columns that the id of a row is computed from, in the order of canonical JSON."""

SPLITS: Final[dict[Kind, tuple[Split, ...]]] = {
    "corpus": ("train", "heldout"),
    "chat": ("train", "heldout"),
    "prompts": ("train", "heldout", "test"),
    "pairs": ("train", "heldout"),
    "feedback": ("train", "heldout"),
    "completions": (),
    "rollouts": (),
    "training_rollouts": (),
    "regraded": (),
    "matches": (),
    "documents": (),
}


ID_LENGTH: Final = 16
_BATCH: Final = 65_536
"""Rows encoded as JSON at a time, to limit memory."""
_CANONICAL_TURNS: Final = pl.List(pl.Struct({"content": pl.String(), "role": pl.String()}))


def digest(text: str) -> str:
    """Return `hex(sha256(text))[:16]`."""
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def canonical(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, UTF-8 unescaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(row: Mapping[str, Any], kind: Kind) -> str:
    """Return the id of one row: `digest(canonical({content columns}))`, including tool use if the row has it."""
    used = {name: row.get(name) for name in TOOL_USE}
    content = {name: row[name] for name in CONTENT[kind]}
    plain = digest(canonical(content | used if any(used.values()) else content))
    return digest(canonical({"id": plain, VARIABLES: row[VARIABLES]})) if row.get(VARIABLES) is not None else plain


def row_ids(frame: pl.DataFrame, kind: Kind) -> pl.Series:
    """Return the `content_id` of every row."""
    ids = _ids_without_variables(frame, kind)
    if VARIABLES not in frame.columns:
        return ids
    varied = content_ids(frame.select(VARIABLES, id=ids), ("id", VARIABLES))
    return pl.select(pl.when(frame[VARIABLES].is_null()).then(ids).otherwise(varied).alias("id")).to_series()


def _ids_without_variables(frame: pl.DataFrame, kind: Kind) -> pl.Series:
    ids, used = content_ids(frame, CONTENT[kind]), [name for name in TOOL_USE if name in frame.columns]
    if kind != "chat" or not used:
        return ids
    whole = frame.with_columns(pl.lit(None, pl.String()).alias(name) for name in TOOL_USE if name not in used)
    tool_ids = content_ids(whole, (*CONTENT[kind], *TOOL_USE))
    uses_tools = pl.any_horizontal(pl.col(used).is_not_null())
    return frame.select(pl.when(uses_tools).then(tool_ids).otherwise(ids).alias("id")).to_series()


def content_ids(frame: pl.DataFrame, columns: Iterable[str]) -> pl.Series:
    """Return `digest(canonical({columns}))` for every row.

    polars writes the same JSON as `canonical`, ten times faster.
    """
    ordered = [
        pl.col(name).cast(_CANONICAL_TURNS) if frame.schema[name] == TURNS else pl.col(name) for name in sorted(columns)
    ]
    parts = [
        pl.Series(
            "id", map(digest, part.select(pl.struct(ordered).struct.json_encode()).to_series()), dtype=pl.String()
        )
        for part in frame.iter_slices(_BATCH)
    ]
    return pl.concat(parts) if parts else pl.Series("id", [], dtype=pl.String())


def with_ids(frame: pl.DataFrame, kind: Kind) -> pl.DataFrame:
    """Return the frame with its `id` column and the table's columns in order, optional columns last."""
    needed = [name for name in COLUMNS[kind] if name != "id"]
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise TableError(
            what=f"a '{kind}' table needs {', '.join(missing)}; it has {', '.join(frame.columns) or 'no columns'}",
            where=f"with_ids(frame, '{kind}')",
            fix="Add the columns first",
        )
    return frame.select(
        row_ids(frame, kind), *needed, *(name for name in OPTIONAL.get(kind, {}) if name in frame.columns)
    )


def from_rows(rows: Iterable[Mapping[str, Any]], kind: Kind) -> pl.DataFrame:
    """Return a table from plain rows that have every column except `id`."""
    table = list(rows)
    schema = {name: dtype for name, dtype in COLUMNS[kind].items() if name != "id"}
    wrong = next((sorted(row) for row in table if set(row) != set(schema)), None)
    if wrong is not None:
        what, fix = f"a row has the keys {', '.join(wrong)}", f"Give every row the keys {', '.join(schema)}"
        raise TableError(what=what, where=f"from_rows(rows, '{kind}')", fix=fix)
    try:
        # column by column, because a frame made of rows silently turns a number into text
        columns = [pl.Series(name, [row[name] for row in table], dtype=dtype) for name, dtype in schema.items()]
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise TableError(
            what=f"the values do not fit the column types ({str(error).splitlines()[0]})",
            where=f"from_rows(rows, '{kind}')",
            fix="Give each column the type of posttrain/data/columns.py",
        ) from error
    return with_ids(pl.DataFrame(columns), kind)
