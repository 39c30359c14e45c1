"""Figures of an evaluation, computed again from its rows."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from posttrain.pipeline.lineage.recompute import evaluated, lengths, tail


def row(prompt: str, reward: float | None, *, greedy: bool = False, status: str = "ok", text: str = "1=1") -> Any:
    score = {"name": "correct", "value": reward or 0.0, "status": "error" if reward is None else "ok"}
    return {
        "prompt_id": prompt, "problem": "", "sample": 0, "greedy": greedy, "prompt": [], "answer": "",
        "task": "two_step",
        "completion": text, "completion_ids": [1, 2], "mask": [True, True], "logps": [-1.0, -1.0],
        "truncated": False,
        "reward": reward, "status": status, "scores": [score],
    }  # fmt: skip


FRAME = pl.DataFrame(
    [row("a", 1.0), row("a", 0.0, status="unparseable", text="no"), row("b", 1.0), row("b", None),
     row("a", 1.0, greedy=True), row("b", 0.0, greedy=True)]
)  # fmt: skip


def test_evaluated() -> None:
    found = evaluated(FRAME, 0)
    assert (found["score"], found["greedy"], found["failed"], found["length"]) == (0.75, 0.5, 0.25, 2.0)
    assert found["parsed"] == pytest.approx(2 / 3) and found["truncated"] == 0.0
    assert found["reward_correct"] == 0.75 and found["pass_at_1"] == 0.75
    assert found["working"] == pytest.approx(2 / 3) and found["right_given_working"] == 1.0


def test_the_scores_of_several_tasks() -> None:
    both = pl.concat([FRAME, FRAME.with_columns(task=pl.lit(""), reward=pl.lit(0.0))])
    found = evaluated(both, 0)
    assert (found["score_two_step"], found["score_other"]) == (pytest.approx(2 / 3), 0.0) and "working" not in found


def test_lengths() -> None:
    assert lengths(FRAME).to_list() == [2] * 6
    assert lengths(FRAME.with_columns(length=pl.lit(7))).to_list() == [7] * 6


def test_tail() -> None:
    columns = {"reward": [0.0, *[1.0] * 9, None, 2.0], "loss": [1.0]}
    assert tail(columns, "reward") == pytest.approx(math.fsum([*[1.0] * 8, 2.0]) / 9)
    assert tail(columns, "loss") is None and tail(columns, "length") is None
