"""A folder with a tiny model and a table of prompts, for the stages of an evaluation."""

from __future__ import annotations

from pathlib import Path

from posttrain.data.columns import from_rows
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder


def make(folder: Path) -> Path:
    """Write the model sft/main, and 30 prompts in the split `test`."""
    (folder / "models/sft").mkdir(parents=True)
    tiny_folder(folder / "tiny").rename(folder / "models/sft/main")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{nth}+1="}], "answer": str(nth + 1), "problem": str(nth),
            "split": "train" if nth < 5 else "test", "task": "", "info": "{}",
        }
        for nth in range(35)
    ]  # fmt: skip
    write_table(from_rows(rows, "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    return folder
