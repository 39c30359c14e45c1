"""The catalogue of metrics by stage and name, used by the page, the docs, `posttrain params metrics` and trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from posttrain.errors import ParamsError
from posttrain.pipeline.metrics.metric import TRAINED, Metric
from posttrain.pipeline.metrics.results import RESULTS
from posttrain.pipeline.metrics.sampling import SAMPLING
from posttrain.pipeline.metrics.training import TRAINING
from posttrain.settings.params import did_you_mean

METRICS: Final = (*TRAINING, *SAMPLING, *RESULTS)
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "base and sft": ["sft"],
    "reward": ["reward"],
    "preference": ["preference"],
    "online and distill": ["online", "distill"],
    "evaluate, ratings and regrade": ["evaluate", "ratings", "regrade"],
}
"""Heading -> its stages. A metric is listed under the first heading that fits, or under `EVERY`."""
EVERY: Final = "Every training"


def metric_named(stage: str, name: str) -> Metric | None:
    """Return the entry of a stage's metric; None if the catalogue has none."""
    entries = [entry for entry in METRICS if stage in entry.stages]
    exact = next((entry for entry in entries if name in entry.names), None)
    return exact or next((entry for entry in entries if entry.pattern.fullmatch(name)), None)


def about(stage: str, name: str) -> str:
    """Return a metric's meaning, healthy range and remedy as plain text; empty if it is unknown."""
    entry = metric_named(stage, name)
    return "" if entry is None else entry.text()


def texts(curves: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return metric -> text, for curves with `path` and `columns`. Stages with different texts get a sentence each."""
    by_metric: dict[str, dict[str, list[str]]] = {}
    for curve in curves:
        stage = stage_of(curve["path"])
        for name in curve["columns"]:
            if text := about(stage, name):
                stages = by_metric.setdefault(name, {}).setdefault(text, [])
                stages += [] if stage in stages else [stage]
    return {
        name: next(iter(known))
        if len(known) == 1
        else " ".join(f"In {' and '.join(stages)}: {text[0].lower()}{text[1:]}" for text, stages in known.items())
        for name, known in by_metric.items()
    }


def stage_of(path: str) -> str:
    """Return the stage of a run's path: `online/grpo` is `online`."""
    return path.partition("/")[0]


def worries(stage: str, columns: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return warnings about the end of a run, from its curves; empty if every value is in its healthy range."""
    warnings = []
    for name, column in columns.items():
        entry = metric_named(stage, name)
        if entry and (worry := entry.worry(name, [value for value in column if value is not None])):
            warnings.append(worry)
    return warnings


def health(curves: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return run -> warnings about its end, for runs with a metric that has limits."""
    return {
        curve["label"]: worries(stage_of(curve["path"]), curve["columns"])
        for curve in curves
        if any((entry := metric_named(stage_of(curve["path"]), name)) and entry.has_limits for name in curve["columns"])
    }


def parts() -> dict[str, list[Metric]]:
    """Return heading -> its metrics, in the order of the catalogue."""
    by_heading: dict[str, list[Metric]] = {heading: [] for heading in (EVERY, *PARTS)}
    for entry in METRICS:
        fitting = (heading for heading, stages in PARTS.items() if {*stages} & {*entry.stages})
        by_heading[EVERY if {*TRAINED} <= {*entry.stages} else next(fitting)].append(entry)
    return by_heading


def tables() -> str:
    """Return the tables of docs/reference/metrics.md."""
    lines: list[str] = []
    for heading, entries in parts().items():
        lines += [f"## {heading}", "", "| metric | what it is | better | healthy | warns | if not |", f"|{'---|' * 6}"]
        for entry in entries:
            names = ", ".join(f"`{name}`" for name in entry.names)
            only = f" ({', '.join(entry.stages)})" if len(entry.stages) == 1 and heading != entry.stages[0] else ""
            better = "" if entry.better == "neither" else entry.better
            cells = [f"{names}{only}", entry.meaning, better, entry.healthy, entry.limits(), entry.fix]
            lines.append(f"| {' | '.join(cells).replace('](', '](../')} |")
        lines.append("")
    return "\n".join(lines)


def listed(asked: str | None = None) -> str:
    """Return the catalogue as text, or the entries of one metric or one stage."""
    chosen = [entry for entry in METRICS if asked is None or asked in entry.stages or entry.pattern.fullmatch(asked)]
    if not chosen:
        names = sorted({name for entry in METRICS for name in (*entry.names, *entry.stages)})
        fix = did_you_mean(str(asked), names) or "`posttrain params metrics` lists all"
        raise ParamsError(what=f"no metric or stage is called '{asked:.80}'", where="posttrain params metrics", fix=fix)
    return "\n".join(f"{', '.join(entry.names)}  ({', '.join(entry.stages)})\n    {entry.text()}" for entry in chosen)
