"""The page's tables that work without a script: errors, health, settings and lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.pipeline.compare.words import ONE_SEED
from posttrain.pipeline.report.markup import Column, Markup, element, figures, folded, listed, table
from posttrain.pipeline.report.wrong import TITLES
from posttrain.pipeline.tables.leaks import Leak

TEXT = "left wrap"
DIFFERS = (
    "As written in params.yaml. What a run does not set is its algorithm's default, or is nothing to that algorithm."
)


def wrong_table(rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table of the kinds of errors among all samples, with a row for each policy."""
    if not rows:
        return Markup()
    note = (
        "Of all sampled completions of the evaluation; cut are those of the wrong ones that did not end by themselves."
    )
    return Markup(
        table("What is wrong", [Column(title) for title in TITLES], rows, stacks=False)
        + element("p", note, class_="note")
    )


def health_list(warnings: Mapping[str, Sequence[str]], leaks: Sequence[Leak] = ()) -> Markup:
    """Return warnings about the end of each run, and about test prompts in training tables."""
    if not warnings and not leaks:
        return element("p", "No run has a metric with limits.", class_="note")
    fine = [run for run, worries in warnings.items() if not worries]
    lines = [f"! {run}: {'; '.join(worries)}" for run, worries in warnings.items() if worries]
    lines += [f"! {leak}" for leak in leaks]
    return listed([*lines, *([f"No metric is beyond its limits: {', '.join(fine)}."] if fine else [])])


def settings_tables(settings: Mapping[str, Any]) -> Markup:
    """Return the settings that differ between runs, and the equal settings."""
    runs, alike = settings["runs"], settings["alike"]
    if not runs:
        return element("p", "params.yaml names no runs.", class_="note")
    shown = element("p", DIFFERS, class_="note") + _settings("Settings that differ", runs, settings["differ"])
    return Markup(
        shown + (folded(f"Settings that are alike: {len(alike)}", _settings("alike", runs, alike)) if alike else "")
    )


def _settings(caption: str, runs: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Markup:
    unset = element("span", "not set", class_="faint")
    cells = [
        [element("code", row["key"]), *(unset if value is None else element("code", value) for value in row["values"])]
        for row in rows
    ]
    return table(caption, [Column("setting"), *(Column(run, "left") for run in runs)], cells, stacks=False)


def lineage_table(stages: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a table of each stage's start and counts."""
    rows = [
        [
            stage["path"],
            stage["start"] or "–",
            figures({name: _figure(value) for name, value in stage["numbers"].items()}),
            folded(f"{len(stage['settings'])} set", figures(stage["settings"])) if stage["settings"] else "defaults",
        ]
        for stage in stages
    ]
    titles = [Column("stage"), Column("starts from", "left whole"), Column("counted", TEXT), Column("settings", TEXT)]
    return table("Stages", titles, rows)


def results_cells(titles: Sequence[str], rows: Sequence[Sequence[str]], errors: Mapping[str, str]) -> Markup:
    """Return the main table. The page's script sorts it, draws it and changes its baseline."""
    columns = [
        Column(title or "verdict", "whole" if "[" in title or title in ("", "verdict") else "") for title in titles
    ]
    unbroken = ONE_SEED.replace(" ", "\u00a0")
    together = [
        [(cell.replace(", ", ",\u00a0") if "[" in cell else cell).replace(ONE_SEED, unbroken) for cell in row]
        for row in rows
    ]  # one line each
    lines = [*together, *([label, error, *["–"] * (len(titles) - 2)] for label, error in errors.items())]
    return table("Settings and their figures", columns, lines) if lines and titles else Markup()


def other_table(name: str, cells: Sequence[Sequence[str]]) -> Markup:
    """Return an evaluation of `evaluate.runs` as a table."""
    titles, *rows = cells
    return Markup(element("h3", name) + table(name, [Column(title) for title in titles], rows))


def _figure(value: float | str) -> str:
    """Return a number as text for the page."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if float(value).is_integer() else f"{value:.4g}"
