"""The stages `data_tasks`, `data_files` and `data_hub`. Each table is checked separately, then all together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from posttrain.data.columns import Kind, Tables
from posttrain.data.splits import check_enough_prompts
from posttrain.measure.phases import phase
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import group_of, policies
from posttrain.pipeline.tables.leaks import leaks
from posttrain.pipeline.tables.store import check_disjoint, check_table, write_tables
from posttrain.pipeline.workspace import table_path


def prepare(run: str, make: Callable[[str], Tables]) -> None:
    """Make the tables of a run, check them and write them to data/RUN. If a table is rejected, write nothing."""
    with phase("load"):
        tables = make(run)
        for kind, frame in tables.items():
            check_table(frame, kind, table_path(f"{run}/{kind}"))
        check_disjoint({str(kind): frame for kind, frame in tables.items()})
        _check_evaluation_split(run, tables)
    write_tables(tables, Path("data") / run)
    print(summary(tables))
    named = {f"{run}/{kind}": frame for kind, frame in tables.items()}
    for leak in leaks(named, {name: frame for name, frame in named.items() if name.endswith("/prompts")}):
        print(leak, file=sys.stderr)


def _check_evaluation_split(run: str, tables: Tables) -> None:
    """Reject too few prompts for `evaluate` before any training."""
    settings = read()
    evaluation = group_of(settings, "evaluate.settings")
    if "prompts" in tables and evaluation.get("data") == f"{run}/prompts" and policies(settings):
        split = evaluation.get("split", "test")
        answers = tables["prompts"].filter(split=split)["answer"].str.strip_chars()
        check_enough_prompts(int((answers != "").sum()) or len(answers), split, table_path(f"{run}/prompts"))


def summary(tables: Mapping[Kind, pl.DataFrame]) -> str:
    """Return the rows per table and split as lines to print."""
    splits = ("train", "heldout", "test")
    lines = [f"{'table':<10}" + "".join(f"{split:>10}" for split in splits)]
    for name, frame in tables.items():
        counts: dict[str, int] = dict(frame["split"].value_counts().rows())
        cells = (f"{counts[split]:,}" if split in counts else "-" for split in splits)
        lines.append(f"{name:<10}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)
