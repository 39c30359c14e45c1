"""`posttrain why WHAT`: trace a number back to its sources, a row in both directions, and a source forwards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import polars as pl

from posttrain.errors import PipelineError
from posttrain.evaluate.pairwise import rated_again
from posttrain.files import rounded
from posttrain.pipeline.lineage.downstream import explain_place
from posttrain.pipeline.lineage.figures import Figure, Figures, is_number, shown_in
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lineage.query import is_row, place_of
from posttrain.pipeline.lineage.recompute import evaluated, lengths, tail
from posttrain.pipeline.lineage.row_sources import explain_row
from posttrain.pipeline.lineage.tree import NOT_STORED, Node, lines, plain
from posttrain.pipeline.lock.digests import LOCK
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import group_of
from posttrain.pipeline.tables.curve import read_curve
from posttrain.pipeline.tables.store import read_results, read_table
from posttrain.rollout import FAILED, SAME

SHOWN = 3
HELDOUT = ("heldout", "best_step", "kept_step", "over_optimised_step")
"""The name prefix of metrics on held-out rows during training."""
"""The worst and the best rows that are named."""
EXACT = 1e-4
"""The relative difference up to which a number agrees. Files store five or six digits."""


def why(what: str, form: Literal["words", "json"]) -> str:
    """Return the tree of a number, a row or a place in a source, as text or JSON."""
    trees = explain(what)
    if form == "json":
        return json.dumps([plain(tree) for tree in trees], indent=2, ensure_ascii=False)
    return "\n\n".join("\n".join(lines(tree)) for tree in trees)


def explain(what: str) -> list[Node]:
    """Return the trees for a question: one, or for a bare number one for each metric with that value."""
    figures, lineage = Figures(), Lineage()
    if not figures.lock:
        raise PipelineError(what="no run has been recorded", where=LOCK, fix="Run the pipeline first: dvc repro")
    if place_of(what):
        return [explain_place(what, figures, lineage)]
    if (figure := figures.named(what)) is not None:
        return [explain_figure(figure, figures, lineage)]
    if is_row(what) and (row := explain_row(what, lineage)) is not None:
        return [row]
    matches = figures.equal_to(what) if is_number(what) else []
    if not matches:
        raise figures.unknown(what)
    if len(matches) == 1:
        return [explain_figure(matches[0], figures, lineage)]
    listed = {match.name: f"{match.value:.6g} in {match.file}" for match in matches}
    return [Node(f"{what}: {len(matches)} numbers are written so; `why NAME` explains one", listed)]


def explain_figure(figure: Figure, figures: Figures, lineage: Lineage) -> Node:
    """Return a number with the rows that it averages, and the sources of these rows."""
    node = Node(f"{figure.name} = {figure.value:.6g}", {"file": figure.file})
    if also := shown_in(figure):
        node.facts["also shown in"] = also
    node.facts["commit"] = lineage.commit
    if figure.of:
        node.facts["computed from"] = list(figure.of)
        parts = [figures.recorded[name] for name in figure.of if name in figures.recorded]
        node.parts = [explain_figure(part, figures, lineage) for part in parts]
        return node
    if figure.key.startswith("reward") and (again := _scored_again(figure, figures)):
        node.facts["scored again"] = again
    node.parts.append(_rows(figure, lineage))
    node.parts.append(lineage.output(figure.file))
    node.parts.append(Node("sources", {"files": lineage.sources(figure.stage) or _generated(figure.stage, lineage)}))
    return node


def _generated(stage: str, lineage: Lineage) -> str:
    """Return the beginning of a chain that does not start with a file."""
    makers = [maker for maker in lineage.above(stage) if maker.startswith("data_")]
    return f"none: {', '.join(makers) or 'its stages'} generate the rows from params.yaml"


def _rows(figure: Figure, lineage: Lineage) -> Node:
    """Return the rows behind a number, and the value that is computed again from them."""
    group = figure.stage.partition("@")[0]
    if group in ("evaluate", "evaluate_runs"):
        return _evaluated(figure, group, lineage)
    if group == "evaluate_ratings":
        return _rated(figure)
    if group == "regrade":
        return _regraded(figure)
    if group == "lm_eval":
        return _documents(figure)
    if "@" in figure.key:
        key, _, step = figure.key.partition("@")
        if key.startswith(HELDOUT):
            node = Node("rows", {"step": step, "held-out prompts": {**_read(figure, lineage)}})
            return _checked(node, figure, None, "the completions of an evaluation during training are not stored")
        node = Node("rows", {"step": step, "rows of the step": _of_step(figure)})
        return _checked(node, figure, None, "points of a curve are not, only the numbers of evaluations and of runs")
    if group.startswith("data_"):
        return _counted(figure)
    file = Path(f"plots/{figure.owner}.csv")
    node = Node("rows", {**_read(figure, lineage), "steps": str(file) if file.is_file() else NOT_STORED})
    if file.is_file() and group in ("online", "distill", "external_rollouts"):
        return _checked(node, figure, tail(read_curve(file), figure.key), "it is not a mean of the last steps")
    return _checked(node, figure, None, "the scores behind it are not stored")


def _read(figure: Figure, lineage: Lineage) -> dict[str, Any]:
    """Return the tables that a training read, and their rows in the number's split."""
    split = "heldout" if figure.key.startswith(HELDOUT) else "train"
    tables = {}
    for path in lineage.inputs(figure.stage):
        if path.endswith(".parquet") and Path(path).is_file():
            rows = pl.scan_parquet(path)
            if "split" in rows.collect_schema():
                chosen = rows.filter(pl.col("split") == split).select("id").collect()["id"]
                tables[path] = {f"{split} rows": len(chosen), "first": chosen.head(SHOWN).to_list()}
    return tables


def _of_step(figure: Figure) -> str:
    folder = Path("rollouts") / figure.owner
    return f"{folder}, column step" if folder.is_dir() else NOT_STORED


def _evaluated(figure: Figure, group: str, lineage: Lineage) -> Node:
    """Return the evaluated rows behind a number, including the worst and the best."""
    file = Path(figure.file).with_name("rollouts.parquet")
    frame, greedy = read_results(file, figure.owner), figure.key == "greedy"
    rows = frame.filter(pl.col("greedy") == greedy)
    rows = rows.with_columns(_values(figure.key, rows).alias("_value")).sort("_value", nulls_last=True)
    known = rows.drop_nulls("_value")
    kind = "greedy" if greedy else "sampled" if group == "evaluate" else "measured"
    facts: dict[str, Any] = {
        "table": str(file),
        "rows": f"{known.height:,} {kind} completions",
        "prompts": rows["prompt_id"].n_unique(),
        "worst": _named(known.head(SHOWN)),
        "best": _named(known.tail(SHOWN)),
    }
    if known.height < rows.height:
        facts["not scored"] = rows.height - known.height
    node = Node("rows", facts)
    seed = (lineage.records.of(lineage.lock[figure.stage]) or {}).get("seed")
    if figure.key.startswith("kl_"):
        return _checked(node, figure, None, "KL needs the weights of both models")
    if seed is None and figure.key in ("score_low", "score_high"):
        return _checked(node, figure, None, "the seed of the interval is not stored")
    return _checked(node, figure, evaluated(frame, seed or 0).get(figure.key), "the rows do not have what it needs")


def _rated(figure: Figure) -> Node:
    """Return the matches behind a rating."""
    file = Path(figure.file).with_suffix(".parquet")
    matches = read_table(file, "matches")
    node = Node("rows", {"table": str(file), "matches": matches.height, "prompts": matches["prompt_id"].n_unique()})
    return _checked(node, figure, rated_again(matches).get(figure.key.removeprefix("rating_")), "it is not a rating")


def _regraded(figure: Figure) -> Node:
    """Return the stored rollouts behind a number of `regrade.runs`, with those whose score moved most."""
    file = Path(f"metrics/{figure.owner}.parquet")
    rows = read_table(file, "regraded")
    both = rows.drop_nulls(["before", "reward"]).with_columns(_change=pl.col("reward") - pl.col("before"))
    moved = both.filter(pl.col("_change").abs() > SAME).sort("_change")
    lowered, raised = moved.filter(pl.col("_change") < 0).head(SHOWN), moved.filter(pl.col("_change") > 0).tail(SHOWN)
    facts: dict[str, Any] = {"table": str(file), "rows": f"{both.height:,} rollouts with both scores"}
    facts["moved"] = f"{moved.height:,} rollouts"
    for title, some in (("lowered most", lowered), ("raised most", raised)):
        if some.height:
            facts[title] = [
                f"{name} ({before:.4g} -> {now:.4g})"
                for name, before, now in some.select("rollout", "before", "reward").iter_rows()
            ]
    again = {
        "reward": both["reward"].mean(), "reward_before": both["before"].mean(), "rollouts": float(rows.height),
        "raised": (both["_change"] > SAME).mean(), "lowered": (both["_change"] < -SAME).mean(),
    }  # fmt: skip
    value = again.get(figure.key)
    return _checked(Node("rows", facts), figure, value if isinstance(value, float) else None, "it is not stored so")


def _scored_again(figure: Figure, figures: Figures) -> dict[str, str]:
    """Return the mean rewards by `regrade.runs` on the rollouts that a run's reward is the mean of."""
    runs = {f"regrade/{name}": run for name, run in group_of(read(), "regrade.runs").items()}
    names = [name for name, run in runs.items() if (run or {}).get("rollouts") == figure.owner]
    known = {name: figures.recorded[f"{name}.reward"].value for name in names if f"{name}.reward" in figures.recorded}
    return {name: f"{value:.4g} on all stored rollouts" for name, value in known.items()}


def _documents(figure: Figure) -> Node:
    """Return the documents behind an lm-eval metric, including the worst and the best, and the mean."""
    file = Path(figure.file).with_name("documents.parquet")
    name, _, reader = figure.key.partition(",")
    task, _, metric = name.rpartition(".")
    rows = read_table(file, "documents").filter(task=task, filter=reader or "none")
    known = rows.with_columns(_score(metric, rows).alias("_value")).drop_nulls("_value").sort("_value")
    count = f"{rows.height:,} documents of {task}"
    facts = {"table": str(file), "rows": count, "worst": _named(known.head(SHOWN)), "best": _named(known.tail(SHOWN))}
    node = Node("rows", facts)
    value = fmean(known["_value"]) if known.height == rows.height > 0 else None
    return _checked(node, figure, value, "it is not a mean of the documents' metric")


def _score(name: str, rows: pl.DataFrame) -> pl.Series:
    """Return each row's score under one name; null if it has none or the reward failed."""
    element = pl.element().struct
    known = (element.field("name") == name) & ~element.field("status").is_in(sorted(FAILED))
    value = pl.col("scores").list.eval(pl.when(known).then(element.field("value")))
    return rows.select(value.list.drop_nulls().list.first()).to_series()


def _values(key: str, rows: pl.DataFrame) -> pl.Series:
    """Return what each row contributes to a number: its length, a part's score, or its reward."""
    if key == "length":
        return lengths(rows).cast(pl.Float64)
    if not key.startswith("reward_"):
        return rows["reward"]
    return _score(key.removeprefix("reward_"), rows)


def _named(rows: pl.DataFrame) -> list[str]:
    return [f"{name} ({value:.4g})" for name, value in rows.select("id", "_value").iter_rows()]


def _counted(figure: Figure) -> Node:
    """Return the rows of a table that a number counts, e.g. pairs_train."""
    folder = Path(figure.owner)
    kind, _, split = figure.key.partition("_")
    file = folder / f"{kind}.parquet"
    node = Node("rows", {"table": str(file) if file.is_file() else f"{folder}/"})
    if not file.is_file():
        return _checked(node, figure, None, "the samples behind it are not stored")
    frame = pl.read_parquet(file)
    rows = frame.filter(split=split) if split and "split" in frame.columns else frame
    node.facts["first"] = rows["id"].head(SHOWN).to_list()
    return _checked(node, figure, float(rows.height), "")


def _checked(node: Node, figure: Figure, value: float | None, why_not: str) -> Node:
    """Return the node with the recomputed value, and whether it agrees with the number."""
    if value is None:
        node.facts["computed again"] = f"no: {why_not}"
        return node
    if not math.isfinite(value):
        node.facts["computed again"] = f"{value}, DIFFERS: the rows or the number were edited"
        return node
    shown = rounded({"": value}, 5 if figure.stage.startswith(("evaluate", "lm_eval")) else 6)[""]
    agrees = abs(shown - figure.value) <= EXACT * max(abs(figure.value), 1e-9) or shown == figure.value
    said = "agrees" if agrees else "DIFFERS: the rows or the number were edited"
    node.facts["computed again"] = f"{shown:.6g}, {said}"
    return node
