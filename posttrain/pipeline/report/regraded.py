"""Stored rollouts with other rewards, as written by the stage `regrade`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.params.stage_table import Settings, group_of, model_runs
from posttrain.pipeline.report.policies import check_recorded, need_numbers, output_digests, read_json
from posttrain.pipeline.workspace import metrics_path
from posttrain.settings.plain import flattened

TITLE = "Stored rollouts, scored again"
TITLES = (
    *("scores", "rollouts of", "rewards of the run", "mean"),
    *("rewards now", "mean now", "raised", "lowered", "rollouts"),
)


def read_regraded(settings: Settings, left_out: Container[str]) -> dict[str, dict[str, Any]]:
    """Return name -> contents of metrics/regrade/NAME.json and the run that it reads. `left_out`: regrade/NAME."""
    runs = {name: run for name, run in group_of(settings, "regrade.runs").items() if f"regrade/{name}" not in left_out}
    files = {name: metrics_path(f"regrade/{name}") for name in runs}
    digests = output_digests() if files else {}
    regraded = {}
    for name, file in files.items():
        check_recorded(file, digests)
        if file.is_file():
            figures = read_json(file)
            need_numbers(figures, figures, file)
            run = str((runs[name] or {}).get("rollouts", ""))
            before = _named(model_runs(settings).get(run, {}).get("reward"))
            now = _named((runs[name] or {}).get("reward"))
            regraded[name] = {"run": run, "rewards_before": before, "rewards": now, **figures}
    return regraded


def _named(reward: object) -> str:
    """Return rewards with their weights and options as text, e.g. `correct 1 (answer: exact), format 0.2`."""
    if not isinstance(reward, Mapping):
        return "the default"
    terms = {name: one if isinstance(one, Mapping) else {"weight": one} for name, one in reward.items()}
    return ", ".join(f"{name} {term.get('weight', 1)}{_options(term)}" for name, term in terms.items())


def _options(term: Mapping[str, Any]) -> str:
    options = {name: value for name, value in term.items() if name != "weight"}
    listed = (f"{name}: {value}" for name, value in flattened(options).items())
    return f" ({', '.join(listed)})" if options else ""


def regraded_cells(runs: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the titles and rows of a table as texts."""
    rows = [[*TITLES]]
    for name, figures in runs.items():
        means = [f"{figures[key]:.3f}" if key in figures else "-" for key in ("reward_before", "reward")]
        shares = [f"{figures[key]:.1%}" if key in figures else "-" for key in ("raised", "lowered")]
        count, both = figures["rollouts"], round(figures["rollouts"] * (1 - figures.get("without_both", 0.0)))
        of = f"{both:,} of {count:,}" if both < count else f"{count:,}"
        cells = [figures["run"], figures["rewards_before"], means[0], figures["rewards"], means[1]]
        rows.append([name, *cells, *shares, of])
    return rows


def regraded_lines(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table as text; empty if there is none."""
    return "\n".join([TITLE, *text_table(regraded_cells(runs), left=(0, 1, 2, 4))]) if runs else ""
