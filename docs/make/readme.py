"""The results in the README: `python -m docs.make.readme` writes the table and the plot, and draws the picture.

The table and the plot are from report/summary.json, the picture is of report/report.html, which the same run wrote. The
picture needs a browser (`apt-get install chromium`).
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.make.picture import FILE as PICTURE
from docs.make.picture import digest_of
from docs.make.picture import draw as draw_page
from posttrain.errors import DataError
from posttrain.files import write_text
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Settings
from posttrain.pipeline.params.stage_table import policies as evaluated_labels
from posttrain.pipeline.report.build import PAGE
from posttrain.pipeline.report.lineage import labels
from posttrain.pipeline.report.markup import NOT_MEASURED, UNREAD
from posttrain.pipeline.report.policies import read_json
from posttrain.pipeline.report.results import markdown_table, reward_note
from posttrain.pipeline.report.stale_results import staleness
from posttrain.pipeline.report.summary import (
    SUMMARY,
    Figures,
    gains,
    is_measured,
    is_read,
    policy_figures,
    result_rows,
    result_titles,
    score_name,
    settings_in,
    trainings_in,
)
from posttrain.pipeline.tables.curve import Column, read_curve
from posttrain.pipeline.workspace import plot_path

README, FIGURE = Path("README.md"), Path("docs/reports/learning.svg")
PROCESSOR = Path(".ci/processor")
"""The processors whose bytes the committed dvc.lock and results have: other makers round otherwise."""
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
WRITTEN_BY = "<!-- Written by `python -m docs.make.readme` from report/summary.json; do not edit. -->"
WIDTH, HEIGHT, REACH = 330, 210, 4
COLOURS = ("#6b7280", "#0b6bb5", "#c2570c", "#12855e", "#a8378b", "#8a6a00", "#2f8fb8", "#6a4fc4")
"""The colours of the page's light theme, which go to settings in the order of evaluate.policies, there and here."""

Spec = dict[str, Any]


def write_readme(not_current: Mapping[str, str]) -> str:
    """Put the table into README.md and the plot into docs/; says what was written."""
    if not_current:
        label, reason = next(iter(not_current.items()))
        raise DataError(what=f"{label}: {reason}", where="results", fix="Run the pipeline first: dvc repro")
    summary, tasks, members = read_summary()
    text = _readme()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = draw(summary, read(), members).removesuffix("\n").removesuffix("</svg>")
    write_text(FIGURE, f"{drawn}<!-- summary {_digest(summary)} --></svg>\n")
    write_text(README, f"{before}{_block(summary, tasks)}{after}")
    write_text(PROCESSOR, f"{processor()}\n")
    return f"wrote the results into {README} and the plot into {FIGURE}"


def write_picture() -> str:
    """Draw the picture of the page that the same run has written; says what was written."""
    draw_page(PAGE, PICTURE, _digest(read_summary()[0]))
    return f"drew {PICTURE}"


def processor() -> str:
    """Return the maker and the family of this machine's processor."""
    found = Path("/proc/cpuinfo")
    lines = found.read_text(encoding="utf-8").splitlines() if found.is_file() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    return f"{facts.get('vendor_id', platform.machine())} family {facts.get('cpu family', '?')}"


def is_of_this_processor() -> bool:
    """Return whether the committed results are those of a processor like this one."""
    return PROCESSOR.read_text(encoding="utf-8").strip() == processor()


def picture_is_current() -> bool:
    """Return whether the picture in README.md is of the results in its table."""
    return digest_of(PICTURE.read_bytes()) == _digest(read_summary()[0])


def readme_is_current() -> bool:
    """Return whether README.md and its plot were made from report/summary.json."""
    summary, tasks, _ = read_summary()
    return (
        _block(summary, tasks) in _readme()
        and FIGURE.is_file()
        and _digest(summary) in FIGURE.read_text(encoding="utf-8")
    )


def read_summary() -> tuple[dict[str, Figures], dict[str, str], dict[str, list[str]]]:
    """Return the rows of settings that the stage `report` wrote, and the task and the policies of each."""
    kept = read_json(Path(SUMMARY))
    summary = settings_in(kept)
    if not policy_figures(summary):
        raise DataError(what="holds no policy", where=SUMMARY, fix="Run the pipeline: dvc repro")
    tasks = {row["setting"]: row["task"] for row in kept["settings"] if row.get("task") is not None}
    return summary, tasks, {row["setting"]: row["policies"].split(", ") for row in kept["settings"]}


def _block(summary: Mapping[str, Figures], tasks: Mapping[str, str]) -> str:
    titles, rows = result_titles(summary), result_rows(summary)
    table = markdown_table([titles, *rows])
    explained = gains(summary, tasks, trainings_in(read_json(Path(SUMMARY))))
    notes = [note for note in (reward_note(summary), explained) if note]
    return "\n\n".join([f"{BEGIN}\n{WRITTEN_BY}", table, *notes, END])


def _readme() -> str:
    if not README.is_file():
        raise DataError(what="file not found", where=str(README), fix="Run from the project's root folder")
    text = README.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        fix = f"Put {BEGIN} and {END} once around the table"
        raise DataError(what="the markers of the results are missing or repeated", where=str(README), fix=fix)
    return text


def _digest(summary: Mapping[str, Figures]) -> str:
    return hashlib.sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()[:16]


def draw(summary: Mapping[str, Figures], settings: Settings, members: Mapping[str, Sequence[str]]) -> str:
    """Return the plot as SVG, with the same bytes for the same figures; `members`: the policies of each setting."""
    import vl_convert

    policies = policy_figures(summary)
    order = list(evaluated_labels(settings))
    domain = sorted(
        policies, key=lambda name: min(map(order.index, set(members[name]) & set(order)), default=len(order))
    )
    colour = {
        "field": "policy",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": domain, "range": [COLOURS[nth % len(COLOURS)] for nth in range(len(domain))]},
    }
    parts = [_bars(policies, colour), *_learning(settings, colour)]
    config = {"view": {"stroke": None}, "axis": {"grid": False, "labelFontSize": 11, "titleFontWeight": "normal"}}
    spec = {"hconcat": parts, "spacing": 85, "bounds": "flush", "background": "white", "padding": 14, "config": config}
    return str(vl_convert.vegalite_to_svg(spec, vl_version=max(vl_convert.get_vegalite_versions(), key=_version)))


def _bars(policies: Mapping[str, Figures], colour: Spec) -> Spec:
    rows = [
        {"policy": name, "label": _label(figures), **{key: figures[key] for key in ("score", "low", "high")}}
        if is_measured(figures)
        else {"policy": name, "label": NOT_MEASURED, "high": 0.0}
        for name, figures in policies.items()
    ]
    y = {
        "field": "policy",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"ticks": False, "labelFontSize": 13},
    }
    name = score_name(policies)
    scale = {"domain": [0, 1]} if name == "pass@1" else {"zero": True}
    title = f"{name} on test problems, 95 % interval"
    value = {"field": "score", "type": "quantitative", "scale": scale, "title": title}
    ends = {"field": "low", "type": "quantitative", "scale": scale, "title": title}
    return {
        "title": "What each policy can do",
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": rows},
        "encoding": {"y": y},
        "layer": [
            {
                "mark": {"type": "bar", "opacity": 0.75, "height": {"band": 0.6}},
                "encoding": {"x": value, "color": colour},
            },
            {"mark": {"type": "rule", "size": 2}, "encoding": {"x": ends, "x2": {"field": "high"}}},
            {
                "mark": {"type": "text", "align": "left", "dx": 7, "fontSize": 12},
                "encoding": {
                    "x": {"field": "high", "type": "quantitative", "scale": scale, "title": title},
                    "text": {"field": "label"},
                },
            },
        ],
    }


def _label(figures: Figures) -> str:
    return f"{figures['score']:.2f}" + ("" if is_read(figures) else f" ({UNREAD})")


def _learning(settings: Settings, colour: Spec) -> list[Spec]:
    """Reward of the online runs by step; where there are none, accuracy of the preference runs."""
    named = labels(settings)
    for family, metric in (("online", "reward"), ("preference", "accuracy")):
        rows = []
        for path, label in named.items():
            file = plot_path(path)
            columns = read_curve(file) if path.startswith(f"{family}/") and file.is_file() else {}
            if metric in columns:
                steps = columns["step"]
                rows += [
                    {"policy": label, "step": step, metric: value}
                    for step, value in zip(steps, smoothed(columns[metric]), strict=True)
                ]
        if rows:
            return [_lines(rows, metric, colour)]
    return []


def _lines(rows: list[dict[str, Any]], metric: str, colour: Spec) -> Spec:
    x = {"field": "step", "type": "quantitative", "title": "optimizer step", "axis": {"tickCount": 6, "format": "d"}}
    y = {
        "field": metric,
        "type": "quantitative",
        "title": f"{metric} in training, mean of ±{REACH} steps",
        "scale": {"zero": False},
        "axis": {"grid": True, "tickCount": 5},
    }
    last = {"aggregate": {"argmax": "step"}, "field": metric, "type": "quantitative"}
    end = {"x": {"aggregate": "max", "field": "step", "type": "quantitative"}, "y": last}
    return {
        "title": "How the runs learn",
        "width": WIDTH,
        "height": HEIGHT,
        "data": {"values": rows},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y, "color": colour}},
            {
                "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12},
                "encoding": {**end, "text": {"field": "policy"}, "color": colour},
            },
        ],
    }


def smoothed(column: Column) -> Column:
    """Return the running mean over REACH steps to either side; near the ends over fewer."""
    means: Column = []
    for nth in range(len(column)):
        around = [value for value in column[max(0, nth - REACH) : nth + REACH + 1] if value is not None]
        means.append(float(f"{sum(around) / len(around):.5g}") if around else None)
    return means


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


if __name__ == "__main__":
    print(write_readme(staleness().reasons))
    print(write_picture())
