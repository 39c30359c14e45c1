"""What runs sampled last, as HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.pipeline.report.last_rollouts import last_rollouts


def row(number: int, draw: int, sample: int, **more: Any) -> dict[str, Any]:
    scores = [{"name": "correct", "value": 1.0, "status": "ok"}, {"name": "bad", "value": 0.0, "status": "error"}]
    given = {
        "round": number, "draw": draw, "prompt_id": "p", "problem": "the problem", "sample": sample, "finish": "stop",
        "length": 1, "reward": 0.25, "scores": scores, "completion": f"text {sample} <b>",
    }  # fmt: skip
    return {**given, **more}


def test_the_newest_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert last_rollouts({}, ["online@a"]) == ""
    folder = Path("checkpoints/online/a/3/rollouts")
    folder.mkdir(parents=True)
    rows = [row(1, 0, 0), row(2, 1, 0), row(2, 1, 1, completion=None, reward=None)]
    pl.DataFrame(rows, schema_overrides={"completion": pl.String, "reward": pl.Float64}).write_parquet(
        folder / "draw-1.parquet"
    )
    found = last_rollouts({}, ["online@a"])
    assert "Last samples of online@a: round 2, as of its last checkpoint" in found and "the problem" in found
    assert "correct 1 (ok), bad – (error), stop, 1 token<" in found and "reward 0.25" in found and "reward –" in found
    assert "text 0 &lt;b&gt;" in found and "(its text is not kept)" in found and found.count("<article>") == 2


def test_prompts_of_the_runs_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("checkpoints/online/a/3/rollouts")
    folder.mkdir(parents=True)
    pl.DataFrame([row(1, 0, 0)]).write_parquet(folder / "draw-1.parquet")
    Path("data/t").mkdir(parents=True)
    prompt = [{"role": "user", "content": "what was asked"}]
    pl.DataFrame({"id": ["p"], "prompt": [prompt]}).write_parquet("data/t/prompts.parquet")
    found = last_rollouts({"online": {"runs": {"a": {"data": "t/prompts"}}}}, ["online@a"])
    assert "what was asked" in found and "the problem" not in found
