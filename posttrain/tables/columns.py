"""The columns of every table: their order, their types, and which of them a row's id is made of."""

from __future__ import annotations

from typing import Final, Literal, get_args

import polars as pl

Kind = Literal["corpus", "chat", "prompts", "pairs", "feedback", "rollouts"]
Split = Literal["train", "heldout", "test"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ROLES: Final = ("system", "user", "assistant", "tool")
TURN: Final = pl.Struct({"role": pl.String(), "content": pl.String()})
SCORE: Final = pl.Struct({"name": pl.String(), "value": pl.Float64(), "status": pl.String()})
TURNS: Final = pl.List(TURN)

TEXT_LIMIT: Final = 1_000_000
"""The longest text of one cell, in characters: longer ones are a whole file that slipped into a cell."""

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
}

OPTIONAL: Final[dict[Kind, dict[str, pl.DataType]]] = {"chat": {"score": pl.Float64()}}
"""Columns at the end of a table that some runs write: in chat the reward of a policy's own sample."""

CONTENT: Final[dict[Kind, tuple[str, ...]]] = {
    "corpus": ("text",),
    "chat": ("messages",),
    "prompts": ("answer", "prompt"),
    "pairs": ("chosen", "prompt", "rejected"),
    "feedback": ("completion", "label", "prompt"),
    "rollouts": ("completion_ids", "greedy", "policy", "prompt_id", "sample"),
}
"""The columns that a row's id is a hash of, in the order of canonical JSON."""

SPLITS: Final[dict[Kind, tuple[Split, ...]]] = {
    "corpus": ("train", "heldout"),
    "chat": ("train", "heldout"),
    "prompts": ("train", "heldout", "test"),
    "pairs": ("train", "heldout"),
    "feedback": ("train", "heldout"),
    "rollouts": (),
}
