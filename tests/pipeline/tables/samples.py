"""A small valid table of every kind."""

from __future__ import annotations

from typing import Any

import polars as pl

from posttrain.data.columns import OPTIONAL, Kind, from_rows, with_ids


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def assistant(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def row_of(kind: Kind, n: int) -> dict[str, Any]:
    """The n-th row of a valid table: rows 0 and 1 are one group of rollouts, 2 and 3 another."""
    asked = {"problem": f"p{n}", "prompt": user(f"What is {n}+1?")}
    group = n // 2
    rows: dict[Kind, dict[str, Any]] = {
        "corpus": {"split": "train", "text": f"{n}+1={n + 1}"},
        "chat": {"split": "train", "problem": f"p{n}", "messages": user(f"{n}?") + assistant(f"#### {n}")},
        "prompts": {"split": "train", **asked, "answer": str(n + 1), "info": "{}", "task": ""},
        "pairs": {
            "split": "train",
            **asked,
            "chosen": assistant(f"{n + 1}"),
            "rejected": assistant("no"),
            "margin": 0.5,
        },
        "feedback": {"split": "train", **asked, "completion": assistant(f"{n + 1}"), "label": n % 2 == 0},
        "completions": {
            "prompt_id": f"{group:016x}",
            "sample": n % 2,
            "greedy": False,
            "prompt_ids": [7, group],
            "completion": f"{n}",
            "completion_ids": [5, n, 0],
            "mask": [True, True, True],
            "logps": [-0.5, -1.25, 0.0],
            "turns": "[]",
            "finish": "stop",
            "reason": "",
            "turn_rewards": [],
            "info": "{}",
            "gain": None,
        },
        "rollouts": {
            "prompt_id": f"{group:016x}",
            "problem": f"p{group}",
            "policy": "sft",
            "sample": n % 2,
            "greedy": False,
            "prompt": user(f"What is {group}+1?"),
            "answer": str(group + 1),
            "task": "",
            "completion": f"{n}",
            "completion_ids": [5, n, 0],
            "mask": [True, True, True],
            "logps": [-0.5, -1.25, 0.0],
            "truncated": False,
            "reward": 1.0,
            "status": "ok",
            "scores": [{"name": "correct", "value": 1.0, "status": "ok"}],
        },
        "training_rollouts": {
            "prompt_id": f"{group:016x}",
            "problem": f"p{group}",
            "task": "",
            "round": 0,
            "attempt": 0,
            "draw": group,
            "sample": n % 2,
            "step": 0,
            "version": "online@grpo step 0",
            "seed": 0,
            "sampling": "{}",
            "prompt_ids": [7, group],
            "completion": f"{n}",
            "completion_ids": [5, n, 0],
            "mask": [True, True, True],
            "logps": [-0.5, -1.25, 0.0],
            "length": 3,
            "logp": -1.75,
            "finish": "stop",
            "reward": 1.0,
            "outcome": 1.0,
            "scores": [{"name": "correct", "value": 1.0, "status": "ok"}],
            "advantage": 0.5,
            "turn_rewards": [],
            "info": "{}",
        },
        "regraded": {
            "rollout": f"{n:016x}",
            "prompt_id": f"{group:016x}",
            "round": 0,
            "step": 0,
            "before": 0.0,
            "reward": 1.0,
            "status": "ok",
            "scores": [{"name": "correct", "value": 1.0, "status": "ok"}],
        },
        "matches": {
            "place": group,
            "prompt_id": f"{group:016x}",
            "first": "sft",
            "second": "grpo",
            "sample": n % 2,
            "first_length": 3,
            "second_length": 5,
            "margin": -0.5,
            "win": 0.0,
            "status": "ok",
        },
        "documents": {
            "task": "sums",
            "doc": n,
            "filter": "none",
            "prompt": f"What is {n}+1?",
            "target": str(n + 1),
            "response": f"It is {n}",
            "read": f"{n}",
            "scores": [{"name": "exact_match", "value": 0.0, "status": "ok"}],
        },
    }
    return rows[kind]


def table_of(kind: Kind, changes: dict[int, dict[str, Any]] | None = None, rows: int = 4) -> pl.DataFrame:
    """A valid table with the given rows' columns changed and the ids right for what came of it."""
    changed = [{**row_of(kind, n), **(changes or {}).get(n, {})} for n in range(rows)]
    optional = {name: dtype for name, dtype in OPTIONAL.get(kind, {}).items() if any(name in row for row in changed)}
    frame = from_rows([{name: row[name] for name in row if name not in optional} for row in changed], kind)
    added = [pl.Series(name, [row.get(name) for row in changed], dtype=dtype) for name, dtype in optional.items()]
    return with_ids(frame.with_columns(added), kind) if added else frame
