"""The stage `report`: compare all policies in numbers, tables and one page."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.data.parquet import write_parquet
from posttrain.files import write_json, write_text
from posttrain.measure.phases import phase
from posttrain.pipeline.metrics.catalog import health, texts
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Settings, group_of, model_runs
from posttrain.pipeline.report.curves import curves, curves_csv, evaluations
from posttrain.pipeline.report.decision import Decision, decide
from posttrain.pipeline.report.lineage import differing, labels, made_from
from posttrain.pipeline.report.lm_eval import lm_eval_table
from posttrain.pipeline.report.markup import Markup
from posttrain.pipeline.report.other_tables import as_cells, other_tables
from posttrain.pipeline.report.page import page
from posttrain.pipeline.report.policies import (
    Policy,
    check_recorded,
    need_numbers,
    output_digests,
    read_json,
    read_policies,
    reference,
)
from posttrain.pipeline.report.ratings import read_ratings, warnings_of
from posttrain.pipeline.report.regraded import TITLE as REGRADED
from posttrain.pipeline.report.regraded import read_regraded, regraded_cells
from posttrain.pipeline.report.samples import for_page, lengths, side_by_side
from posttrain.pipeline.report.summary import (
    GAIN,
    HEADLINE,
    SUMMARY,
    extra_columns,
    gain_parts,
    headline,
    result_rows,
    result_titles,
    reward_figures,
    score_name,
    summarize,
    tasks_of,
    to_json,
    trainings,
    verdict,
)
from posttrain.pipeline.report.tables import (
    health_list,
    lineage_table,
    other_table,
    results_cells,
    settings_tables,
    wrong_table,
)
from posttrain.pipeline.report.wrong import Asked, wrong_rows
from posttrain.pipeline.tables.leaks import leaks_of, tables_under
from posttrain.pipeline.workspace import metrics_path
from posttrain.settings.plain import texts_in

DATA = Path("data")
SAMPLES, PAGE = Path("report/samples.parquet"), Path("report/report.html")
CURVES = Path("report/curves.csv")
SCORES = Path("report/scores.csv")
"""The scores that `dvc plots show` draws."""
TITLE = "posttrain"


TEXT_BYTES = 20_000_000
"""The approximate size of prompts and completions on the page. If there are more, it has fewer samples per prompt."""
LONGEST_TEXT = 2000
"""Longer texts are cut on the page, but not in samples.parquet."""
CURVE_POINTS = 400
"""Longer learning curves are averaged to this many points."""


@dataclass(frozen=True)
class Report:
    """The complete contents of the report."""

    data: Mapping[str, Any]
    """The data that the page's script shows."""
    written: Mapping[str, Markup]
    """The parts of the page that need no script."""
    samples: pl.DataFrame
    figures: Mapping[str, Any]
    """The contents of summary.json."""
    headline: Mapping[str, Any]
    errors: dict[str, str]
    """Label -> why it is left out."""


def read_report(not_current: Mapping[str, str]) -> Report:
    """Return the report without policies whose results are out of date."""
    settings = read()
    with phase("load"):
        policies, errors = read_policies(settings, not_current)
        others, missing = other_tables(settings, not_current)
        errors |= missing
        rewards = reward_metrics(settings, not_current)
        regraded = read_regraded(settings, not_current)
    summary, decision = summarize(policies, rewards), decide(policies, settings)
    table = side_by_side(policies)
    data = page_data(settings, policies, table, summary, decision, errors)
    figures, tasks, found_leaks = (
        decision.figures(),
        tasks_of(policies),
        leaks_of(learned(settings), tables_under(DATA)),
    )
    written = {
        "results": results_cells(result_titles(figures), result_rows(figures), errors),
        "others": Markup(
            "".join(other_table(other.name, as_cells(other)) for other in others)
            + (other_table(REGRADED, regraded_cells(regraded)) if regraded else "")
        ),
        "health": health_list(health(data["curves"]), found_leaks),
        "wrong": wrong_table(wrong_rows(policies) if score_name(summary) == "pass@1" else []),
        "settings": settings_tables(differing(settings)),
        "lineage": lineage_table(made_from(settings, list(policies))),
    }
    document = to_json(summary, figures, tasks | decision.tasks(tasks), decision.members)
    if others:
        document["tables"] = [{"table": other.name, **row} for other in others for row in other.rows]
    if regraded:
        document["regraded"] = [{"regraded": name, **figures} for name, figures in regraded.items()]
    if found_leaks:
        document["leaks"] = [leak.plain for leak in found_leaks]
    return Report(data, written, table, document, headline(summary), errors)


def learned(settings: Settings) -> list[str]:
    """Return the tables that runs train on, e.g. mine/chat."""
    named = {text for run in model_runs(settings).values() for text in texts_in(run or {})}
    return [name for name in tables_under(DATA) if name in named]


def build_page(not_current: Mapping[str, str], heading: Markup, to: Path) -> dict[str, str]:
    """Write only the page, without policies whose results are out of date. Return label -> reason for each of these.

    `heading`: information that differs between equal runs, so the stage's page does not have it.
    """
    report = read_report(not_current)
    write_text(to, page(report.data, TITLE, {"heading": heading, **report.written}))
    return report.errors


def build_report() -> dict[str, str]:
    """Write the files under report/. Print and return label -> reason for each omitted policy."""
    report = read_report({})
    write_text(PAGE, page(report.data, TITLE, {"heading": Markup(), **report.written}))
    write_json(Path(SUMMARY), report.figures)
    write_json(Path(HEADLINE), report.headline)
    write_parquet(report.samples, SAMPLES)
    write_text(CURVES, curves_csv(report.data["curves"], [policy["label"] for policy in report.data["policies"]]))
    labels = [policy["label"] for policy in report.data["policies"] if policy["label"] in report.headline]
    rows = (f"{label},{report.headline[label]!r}\n" for label in labels)
    write_text(SCORES, "".join(["policy,score\n", *rows]))
    for label, error in report.errors.items():
        print(f"report: {label} is left out: {error}")
    print(f"report: open {PAGE} in a browser")
    return report.errors


def reward_metrics(settings: Settings, left_out: Container[str] = ()) -> dict[str, dict[str, Any]]:
    """Return folder under models/ -> metrics of the stage `reward`, for all reward models except `left_out`."""
    names = [f"reward/{run}" for run in group_of(settings, "reward.runs")]
    files = {name: metrics_path(name) for name in names if name not in left_out}
    digests = output_digests()
    for file in files.values():
        check_recorded(file, digests)
    measured = {name: read_json(file) for name, file in files.items() if file.is_file()}
    for name, metrics in measured.items():
        need_numbers(metrics, [key for key in metrics if key == "heldout_accuracy"], files[name])
    return measured


def page_data(
    settings: Settings,
    policies: Sequence[Policy],
    table: pl.DataFrame,
    summary: dict[str, dict[str, float]],
    decision: Decision,
    errors: dict[str, str],
) -> dict[str, Any]:
    """Return everything on the page as plain data."""
    drawn, trained = curves(labels(settings).items(), CURVE_POINTS), trainings(summary, decision.members)
    return {
        "title": TITLE,
        "reference": reference(policies),
        "rewards": [{"run": name, **figures} for name, figures in reward_figures(summary).items()],
        "errors": [{"label": label, "error": error} for label, error in errors.items()],
        "gain": gain_parts(decision.figures(), decision.tasks(tasks_of(policies)), trained),
        "decision": _decision(decision),
        "score": score_name(summary),
        "extra": extra_columns(summary),
        "policies": [
            {
                "label": policy.label,
                "path": policy.model,
                "metrics": dict(policy.metrics),
                "lengths": lengths(policy),
            }
            for policy in policies
        ],
        "ratings": [
            {"name": name, "said": warnings_of(rating), **rating}
            for name, rating in read_ratings(settings, errors).items()
        ],
        "lm_eval": lm_eval_table(settings, errors),
        "curves": drawn,
        "about": texts(drawn),
        "evaluations": evaluations(labels(settings).items()),
        **shown_prompts(settings, policies, table),
    }


def shown_prompts(settings: Settings, policies: Sequence[Policy], table: pl.DataFrame) -> dict[str, Any]:
    """Return the page's prompts with samples, and their number out of all prompts."""
    shown = for_page(table["prompt_id"].to_list(), policies, LONGEST_TEXT, TEXT_BYTES, Asked(settings))
    counts = {key: getattr(shown, key) for key in ("prompts_in_all", "samples", "samples_in_all", "with_texts")}
    return {"prompts": shown.prompts, "reasons": shown.reasons, "shown": counts}


def _decision(decision: Decision) -> dict[str, Any]:
    """Return the main table: its rows, and the differences to each row that can be chosen as baseline."""
    chosen = {base: decision.figures(base) for base in decision.differences}
    return {
        "base": decision.base,
        "rows": [
            {
                "setting": row.setting,
                "policies": row.policies,
                "trained": row.trained,
                "path": row.model,
                "metrics": dict(row.figures),
            }
            for row in decision.rows
        ],
        "against": {
            base: {
                setting: [*(figures[key] for key in GAIN), verdict(figures)]
                for setting, figures in findings.items()
                if GAIN[0] in figures
            }
            for base, findings in chosen.items()
        },
    }
