"""A small workspace whose dvc.lock says that all of it came from one line of the user's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.data.columns import from_rows
from posttrain.files import file_digest
from posttrain.pipeline.tables.store import write_table

TEXT = "What is two and three, please, as a number?"
SOURCE, TABLE, RESULTS = "my/prompts.jsonl", "data/mine/prompts.parquet", "results/sft/rollouts.parquet"


def trace(folder: Path) -> str:
    """Add a source, a table, a model and the lock to the workspace `finished`. Return the id of the prompt."""
    assert Path.cwd() == folder
    Path("my").mkdir()
    Path(SOURCE).write_text(json.dumps({"prompt": TEXT, "answer": "5"}) + "\n")
    row = {
        "prompt": [{"role": "user", "content": TEXT}], "answer": "5", "problem": "a", "split": "test", "task": "",
        "info": "{}",
    }  # fmt: skip
    write_table(from_rows([row], "prompts"), Path(TABLE), "prompts")
    Path("models/sft/main").mkdir(parents=True)
    Path("dvc.yaml").write_text("stages: {}\n")
    params = Path("params.yaml").read_text(encoding="utf-8")
    added = "{files: {mine: {path: my, prompts: prompts.jsonl}}, tasks: "
    Path("params.yaml").write_text(params.replace("{tasks: ", added), encoding="utf-8")
    stages = {
        "data_files@mine": entry([SOURCE], [TABLE]),
        "sft@main": entry([TABLE], ["models/sft/main", "metrics/sft/main.json", "plots/sft/main.csv"]),
        "evaluate@sft": entry(["models/sft/main"], ["results/sft/metrics.json", RESULTS]),
        "evaluate@dpo": entry(["models/preference/dpo"], ["results/dpo/metrics.json", "results/dpo/rollouts.parquet"]),
    }
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    return str(pl.read_parquet(TABLE)["id"][0])


def entry(deps: list[str], outs: list[str]) -> dict[str, Any]:
    """An entry of dvc.lock with the digests of the files that are there."""
    return {"cmd": "posttrain run", "deps": [file(path) for path in deps], "outs": [file(path) for path in outs]}


def file(path: str) -> dict[str, str]:
    return {"path": path, **({"md5": file_digest(Path(path))} if Path(path).is_file() else {})}
