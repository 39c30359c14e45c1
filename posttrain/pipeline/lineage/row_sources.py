"""Look up a row by its id: its contents, its source row, and its uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.pipeline.lineage.lineage import PARTS, ROLLOUTS, Lineage
from posttrain.pipeline.lineage.query import Query, source_encodings, texts_of
from posttrain.pipeline.lineage.search import in_files
from posttrain.pipeline.lineage.tree import NOT_STORED, Node, quoted
from posttrain.rollout import stored_value

_LONG: Final = ("completion_ids", "prompt_ids", "mask", "logps")
"""Columns that are shown as a count."""


def explain_row(name: str, lineage: Lineage) -> Node | None:
    """Return the rows with this id, including rollouts with this prompt; None if there are none."""
    nodes = list(_tables(name, lineage))
    if not nodes:
        return None
    node = nodes[0]
    node.parts += _uses(name) if node.title.endswith("prompts.parquet") else ()
    return node


def _tables(name: str, lineage: Lineage) -> Iterator[Node]:
    """Yield the row from every table that contains it."""
    for file in [*sorted(Path("data").glob("*/*.parquet")), *_rollout_files()]:
        rows = pl.scan_parquet(file)
        if "id" not in rows.collect_schema():
            continue
        for row in rows.filter(pl.col("id") == name).collect().to_dicts():
            cells = {key: _cell(key, value) for key, value in row.items() if key != "id"}
            node = Node(f"{name}: a row of {file}", cells | _scored_again(name))
            node.parts += _prompt(row, lineage) if "prompt_id" in row else ()
            if stage := lineage.maker(str(file)):
                node.parts += [] if "prompt_id" in row else [_source(row, stage, lineage)]
                node.parts.append(lineage.stage(stage))
            yield node


def _scored_again(name: str) -> dict[str, Any]:
    """Return the new scores of a stored rollout, by the run of `regrade.runs`."""
    new_scores = {}
    for file in sorted(Path("metrics/regrade").glob("*.parquet")):
        for row in pl.scan_parquet(file).filter(pl.col("rollout") == name).collect().to_dicts():
            scores = ", ".join(f"{score['name']} {_score(score)}" for score in row["scores"])
            new_scores[f"scored again by regrade/{file.stem}"] = f"{_reward(row['reward'])} ({scores})"
    return new_scores


def _reward(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4g}"


def _prompt(row: dict[str, Any], lineage: Lineage) -> Iterator[Node]:
    """Yield the prompt row that an evaluated or trained rollout answers."""
    for file in sorted(Path("data").glob("*/prompts.parquet")):
        for prompt in pl.scan_parquet(file).filter(pl.col("id") == row["prompt_id"]).collect().to_dicts():
            node = Node(f"{prompt['id']}: a row of {file}", {key: _cell(key, value) for key, value in prompt.items()})
            if stage := lineage.maker(str(file)):
                node.parts.append(_source(prompt, stage, lineage))
            yield node


def _source(row: dict[str, Any], stage: str, lineage: Lineage) -> Node:
    """Return the lines of the user's files that contain the row's text, or the stage that generated it."""
    sources, query = lineage.sources(stage), Query(texts=texts_of([row]), encodings=source_encodings())
    if not sources:
        return Node("source", {"generated": f"by {stage} from params.yaml"})
    paths = (path for source in map(Path, sources) for path in ([source] if source.is_file() else source.rglob("*")))
    rows, failed = in_files(sorted(path for path in paths if path.is_file()), query) if query.texts else ({}, {})
    lines: Any = {file: places[:5] for file, places in rows.items()} or "none: no source file holds its text"
    return Node("source", {"lines": lines, **({"could not be searched": failed} if failed else {})})


def _uses(prompt: str) -> Iterator[Node]:
    """Yield the rollouts of a prompt, from evaluations and training."""
    for file in _rollout_files():
        rows = pl.scan_parquet(file).filter(pl.col("prompt_id") == prompt).select("id", "reward").collect()
        if rows.height:
            mean = rows["reward"].mean()
            facts = {"rows": rows.height, "mean reward": mean, "ids": rows["id"].head(3).to_list()}
            yield Node(f"used by {file}", facts)
    if not any(ROLLOUTS.rglob(PARTS)):
        yield Node("training rollouts", {"rows": NOT_STORED})


def _rollout_files() -> list[Path]:
    return [*sorted(Path("results").glob("*/rollouts.parquet")), *sorted(ROLLOUTS.rglob(PARTS))]


def _cell(name: str, value: Any) -> Any:
    if name in _LONG and value is not None:
        return f"{len(value)} values"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        if "content" in value[0]:
            return [f"{turn['role']}: {quoted(turn['content'])}" for turn in value]
        return {score["name"]: _score(score) for score in value if "name" in score}
    return quoted(value) if isinstance(value, str) else value


def _score(score: dict[str, Any]) -> str:
    value = stored_value(score)
    return score["status"] if value is None else f"{value:.4g} {score['status']}"
