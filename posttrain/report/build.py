"""The stage `report`: all policies side by side, as figures, as a table and as one page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from posttrain.measure.phases import phase
from posttrain.params import Params, read
from posttrain.report.curves import curves
from posttrain.report.lineage import SINGLE, differing, made_from
from posttrain.report.page import page
from posttrain.report.policies import Policy, Settings, labels, measured, need_numbers, read_json, reference, runs
from posttrain.report.samples import for_page, lengths, samples, side_by_side
from posttrain.report.summary import HEADLINE, REWARD_MODEL, SUMMARY, gain_parts, headline, summarize, to_json
from posttrain.tables.parquet import write_parquet
from posttrain.workspace import metrics_path, write_json

SAMPLES, PAGE = Path("report/samples.parquet"), Path("report/report.html")


class ReportParams(Params):
    """Section `report`: what the page shows."""

    title: str = Field("posttrain", min_length=1, description="the page's heading")
    prompts: int = Field(200, ge=1, description="prompts whose completions are shown side by side")
    characters: int = Field(2000, ge=80, description="longer texts are cut on the page, not in samples.parquet")
    points: int = Field(400, ge=2, description="points of a learning curve; longer runs are averaged to as many")


def build_report(params: ReportParams) -> dict[str, dict[str, float]]:
    """Writes headline.json, summary.json, samples.parquet and report.html under report/; gives the summary."""
    settings = read()
    with phase("load"):
        policies = measured(settings)
        reward = read_json(metrics_path("reward")) if metrics_path("reward").is_file() else {}
        need_numbers(reward, [name for name in reward if name == "heldout_accuracy"], metrics_path("reward"))
    summary = summarize(policies, reward)
    table = side_by_side(policies, params.prompts)
    data = page_data(params, settings, policies, table, summary)
    write_json(Path(SUMMARY), to_json(summary))
    write_json(Path(HEADLINE), headline(summary))
    write_parquet(table, SAMPLES)
    _write_text(PAGE, page(data, params.title))
    return summary


def page_data(
    params: ReportParams,
    settings: Settings,
    policies: Sequence[Policy],
    table: pl.DataFrame,
    summary: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """Everything that the page shows, as plain data."""
    named = {**{path: path for path in SINGLE}, **labels(runs(settings))}
    return {
        "title": params.title,
        "reference": reference(policies),
        "reward_model": summary.get(REWARD_MODEL),
        "gain": gain_parts(summary),
        "policies": [
            {
                "label": one.label,
                "path": one.path,
                "metrics": dict(one.metrics),
                "lengths": lengths(one),
                "samples": samples(one),
            }
            for one in policies
        ],
        "curves": curves(named.items(), params.points),
        "settings": differing(settings),
        "stages": made_from(settings, list(policies)),
        "prompts": for_page(table, policies, params.characters),
    }


@phase("write")
def _write_text(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
