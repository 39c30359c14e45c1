"""The stage `report`: all policies side by side, as figures, as a table and as one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.measure.phases import phase
from posttrain.params.params import read
from posttrain.params.stage_table import Settings, group_of
from posttrain.report.curves import curves, curves_csv, evaluations
from posttrain.report.decision import Decision, decide
from posttrain.report.lineage import differing, labels, made_from
from posttrain.report.lm_eval import lm_eval_table
from posttrain.report.other_tables import as_cells, other_tables
from posttrain.report.page import page
from posttrain.report.policies import (
    Policy,
    check_recorded,
    need_numbers,
    output_digests,
    read_json,
    read_policies,
    reference,
)
from posttrain.report.ratings import read_ratings
from posttrain.report.samples import for_page, lengths, samples, side_by_side
from posttrain.report.summary import (
    GAIN,
    HEADLINE,
    SUMMARY,
    extra_columns,
    gain_parts,
    headline,
    reward_figures,
    score_name,
    summarize,
    tasks_of,
    to_json,
    verdict,
)
from posttrain.tables.store import write_parquet
from posttrain.workspace import metrics_path, write_json, write_text

SAMPLES, PAGE = Path("report/samples.parquet"), Path("report/report.html")
CURVES = Path("report/curves.csv")
TITLE = "posttrain"


SHOWN_PROMPTS = 200
"""Prompts whose completions are shown side by side."""
LONGEST_TEXT = 2000
"""Longer texts are cut on the page, not in samples.parquet."""
CURVE_POINTS = 400
"""Longer learning curves are averaged to as many points."""


def build_report(not_current: Mapping[str, str]) -> dict[str, str]:
    """Write the files under report/, without the policies that are not current; label -> why one is left out.

    Where there are such policies only the page is written: git keeps the figures, which are those of a whole run.
    """
    settings = read()
    with phase("load"):
        policies, errors = read_policies(settings, not_current)
        others, missing = other_tables(settings, not_current)
        errors |= missing
        rewards = reward_metrics(settings)
    summary, decision = summarize(policies, rewards), decide(policies, settings)
    table = side_by_side(policies, SHOWN_PROMPTS)
    data = page_data(settings, policies, table, summary, decision, errors)
    data["tables"] = [{"name": other.name, "cells": as_cells(other)} for other in others]
    write_text(PAGE, page(data, TITLE))
    if not not_current:
        tasks = tasks_of(policies)
        kept = to_json(summary, decision.figures(), tasks | decision.tasks(tasks), decision.members)
        if others:
            kept["tables"] = [{"table": other.name, **row} for other in others for row in other.rows]
        write_json(Path(SUMMARY), kept)
        write_json(Path(HEADLINE), headline(summary))
        write_parquet(table, SAMPLES)
        write_text(CURVES, curves_csv(data["curves"]))
    return errors


def reward_metrics(settings: Settings) -> dict[str, dict[str, Any]]:
    """Folder under models/ -> what the stage `reward` measured of each reward model that is there."""
    files = {f"reward/{run}": metrics_path(f"reward/{run}") for run in group_of(settings, "reward.runs")}
    digests = output_digests()
    for file in files.values():
        check_recorded(file, digests)
    found = {name: read_json(file) for name, file in files.items() if file.is_file()}
    for name, metrics in found.items():
        need_numbers(metrics, [key for key in metrics if key == "heldout_accuracy"], files[name])
    return found


def page_data(
    settings: Settings,
    policies: Sequence[Policy],
    table: pl.DataFrame,
    summary: dict[str, dict[str, float]],
    decision: Decision,
    errors: dict[str, str],
) -> dict[str, Any]:
    """Return everything that the page shows, as plain data."""
    return {
        "title": TITLE,
        "reference": reference(policies),
        "rewards": [{"run": name, **figures} for name, figures in reward_figures(summary).items()],
        "errors": [{"label": label, "error": error} for label, error in errors.items()],
        "gain": gain_parts(decision.figures(), decision.tasks(tasks_of(policies))),
        "decision": _decision(decision),
        "score": score_name(summary),
        "extra": extra_columns(summary),
        "policies": [
            {
                "label": policy.label,
                "path": policy.model,
                "metrics": dict(policy.metrics),
                "lengths": lengths(policy),
                "samples": samples(policy),
            }
            for policy in policies
        ],
        "ratings": [{"name": name, **found} for name, found in read_ratings(settings).items()],
        "lm_eval": lm_eval_table(settings, errors),
        "curves": curves(labels(settings).items(), CURVE_POINTS),
        "evaluations": evaluations(labels(settings).items()),
        "settings": differing(settings),
        "stages": made_from(settings, list(policies)),
        "prompts": for_page(table, policies, LONGEST_TEXT),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    """Return the table that decides: its rows, and the differences to each setting that can be chosen."""
    chosen = {base: decision.figures(base) for base in decision.differences}
    return {
        "base": decision.base,
        "rows": [
            {"setting": row.setting, "policies": row.policies, "path": row.model, "metrics": dict(row.figures)}
            for row in decision.rows
        ],
        "against": {
            base: {
                setting: [*(figures[key] for key in GAIN), verdict(figures)]
                for setting, figures in found.items()
                if GAIN[0] in figures
            }
            for base, found in chosen.items()
        },
    }
