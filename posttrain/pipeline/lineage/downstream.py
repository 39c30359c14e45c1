"""Follow a row of a source file forwards: tables, runs, models, checkpoints and metrics that it affected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from posttrain.files import file_digest
from posttrain.pipeline.lineage.figures import Figures
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lineage.query import parse_query
from posttrain.pipeline.lineage.runs import affected, model_made
from posttrain.pipeline.lineage.search import in_files, table_rows
from posttrain.pipeline.lineage.tree import Node, quoted
from posttrain.pipeline.lock.orphaned_outputs import leftovers
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.workspace import checkpoint_path, model_path


def explain_place(what: str, figures: Figures, lineage: Lineage) -> Node:
    """Return everything that a line of a source has affected."""
    query = parse_query(what)
    source = Path(what.rpartition(":")[0])
    removed = leftovers(read())
    left = {path for paths in removed.values() for path in paths}
    files = [file for file in sorted(Path("data").rglob("*.parquet")) if not left.intersection(_with_parents(file))]
    tables, failed = in_files(files, query)
    ids = [str(row["id"]) for row in table_rows(query, files) if "id" in row]
    node = Node(what, {"text": [quoted(text) for text in query.texts], "rows with its text": ids[:5]})
    if failed:
        node.facts["could not be searched"] = failed
    if removed:
        node.facts["not followed"] = f"leftovers of removed runs ({', '.join(removed)}); `posttrain where` finds all"
    node.parts.append(Node("tables", {file: f"row {', '.join(map(str, rows[:5]))}" for file, rows in tables.items()}))
    held = [*tables, str(source)]
    lock = {name: entry for name, entry in lineage.lock.items() if name not in removed}
    runs = affected(lock, {file_digest(Path(file)) for file in held}, held)
    node.parts.append(Node("runs that it reached", {name: f"through {through}" for name, through in runs.items()}))
    models = [model for name in runs if (model := model_made(name))]
    node.parts.append(Node("models", {str(model_path(trained)): _presence(trained) for trained in models}))
    node.parts.append(Node("figures", _figures(figures, set(runs))))
    node.parts.append(Node("evaluated rows", _answers(ids, left)))
    node.parts = [part for part in node.parts if part.facts]
    return node


def _with_parents(file: Path) -> set[str]:
    return {str(path) for path in (file, *file.parents)}


def _figures(figures: Figures, runs: set[str]) -> dict[str, float]:
    """Return the numbers that these stages wrote, and those computed from them."""
    known = figures.recorded
    written = {name for name, figure in known.items() if figure.stage in runs and not figure.of}
    return {name: figure.value for name, figure in known.items() if name in written or written.intersection(figure.of)}


def _presence(model: str) -> str:
    """Tell whether the run's model and checkpoints exist."""
    there = "there" if model_path(model).exists() else "not in the workspace"
    return f"{there}, with checkpoints" if any(checkpoint_path(model).glob("*")) else there


def _answers(ids: list[str], left: set[str]) -> dict[str, Any]:
    """Return the evaluated completions for the row as a prompt, except those from removed runs."""
    answers: dict[str, Any] = {}
    for file in sorted(file for file in Path("results").glob("*/rollouts.parquet") if str(file) not in left):
        rows = pl.scan_parquet(file).filter(pl.col("prompt_id").is_in(ids)).select("id", "reward").collect()
        if rows.height:
            answers[str(file)] = {"rows": rows.height, "mean reward": rows["reward"].mean(), "first": rows["id"][0]}
    return answers
