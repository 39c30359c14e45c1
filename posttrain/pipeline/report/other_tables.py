"""Evaluations on separate tables (`evaluate.runs`), which show effects of training beyond the training task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError
from posttrain.measure.text_table import text_table
from posttrain.pipeline.compare.factors import Flat, differing
from posttrain.pipeline.compare.paired import against
from posttrain.pipeline.compare.settings import meaning_of
from posttrain.pipeline.params.stage_table import Settings, group_of, policies, runs_of
from posttrain.pipeline.report.policies import Policy, check_recorded, output_digests, read_policy
from posttrain.pipeline.report.summary import GAIN, part_cell, shown_parts
from posttrain.settings.plain import flattened

NOT_MEASURED = "not measured: no reward judges its prompts (docs/rewards.md)"
LEFT_OUT = ("score", "score_low", "score_high", "kl_k1", "kl_k3", "greedy", "parsed", "truncated")
"""Metrics that have their own column, or add nothing to the score."""
NOT_MEANING = ("by", "context", "reference")
"""Settings that may differ within a table. `by` is in the title; the others do not change what the score means."""


@dataclass(frozen=True)
class OtherTable:
    """Policies that were evaluated on one table with comparable scores, and the reference among them."""

    name: str
    reference: str
    names: Mapping[str, str]
    """Run -> the name of its row: the policy, and the run if the policy alone is ambiguous."""
    rows: list[dict[str, Any]]
    """`policy`, `run`, `score`, `low`, `high`, the paired difference to the reference, and more metrics."""


def other_tables(settings: Settings, not_current: Mapping[str, str]) -> tuple[list[OtherTable], dict[str, str]]:
    """Return the evaluations of `evaluate.runs` by table, and run -> the reason if it has no results."""
    errors: dict[str, str] = {}
    groups: dict[str, list[tuple[Flat, Policy]]] = {}
    digests, flat = output_digests(), flattened(settings)
    for name, run in runs_of(settings, "evaluate.runs").items():
        try:
            if name in not_current:
                errors[name] = not_current[name]
                continue
            check_recorded(Path("results") / name / "metrics.json", digests)
            way = " by likelihood" if run.get("by") == "likelihood" else ""
            policy = read_policy(name, str(run.get("policy", "")))
            if policy.metrics.get("judged") == 0:
                errors[name] = NOT_MEASURED
                continue
            entry = (_meaning(name, run, flat), policy)
            groups.setdefault(f"{run.get('data', '')}{way}", []).append(entry)
        except PosttrainError as error:
            errors[name] = str(error)
    shown = {model: label for label, model in reversed(policies(settings).items())}
    measured = group_of(settings, "evaluate.settings")
    base, data = (str(measured.get(key, "")) for key in ("reference", "data"))
    return [
        _table(title, same, base, shown, on_main=name == data)
        for name, members in groups.items()
        for title, same in _alike(name, members).items()
    ], errors


def as_lines(tables: Sequence[OtherTable]) -> list[str]:
    """Return each table as text."""
    return ["\n".join([table.name, *text_table(as_cells(table))]) for table in tables]


def _meaning(name: str, run: Settings, flat: Flat) -> Flat:
    """Return the settings of a run that change what its scores mean, and the split that it reads."""
    split = "test" if str(run.get("data", "")).endswith("/prompts") else "heldout"
    kept_settings = {key: value for key, value in meaning_of(name, flat).items() if key not in NOT_MEANING}
    return {**kept_settings, "split": str(run.get("split", split))}


def _alike(name: str, members: Sequence[tuple[Flat, Policy]]) -> dict[str, list[Policy]]:
    """Return groups of policies with comparable scores. If there are several, the titles distinguish them."""
    keys = differing([meaning for meaning, _ in members])
    groups: dict[str, list[Policy]] = {}
    for meaning, policy in members:
        title = ", ".join([name, *(f"{key}={meaning[key]}" for key in keys if key in meaning)])
        groups.setdefault(title, []).append(policy)
    return groups


def _table(name: str, members: Sequence[Policy], base: str, shown: Mapping[str, str], *, on_main: bool) -> OtherTable:
    """Return one table. `on_main`: it is the table of `evaluate.settings`, where the policies have other scores."""
    reference = next((policy for policy in members if policy.model == base), members[0])
    others = {policy.label: policy.rollouts for policy in members if policy is not reference}
    gains = against(reference.rollouts, others)
    rows = []
    for policy in members:
        metrics, gain = policy.metrics, gains.get(policy.label)
        row: dict[str, Any] = {"policy": shown.get(policy.model, policy.model), "run": policy.label}
        row |= {"score": metrics["score"], "low": metrics["score_low"], "high": metrics["score_high"]}
        row |= dict(zip(GAIN, (gain.mean, gain.low, gain.high), strict=True)) if gain else {}
        rows.append(row | {key: value for key, value in metrics.items() if key not in LEFT_OUT})
    models = [policy.model for policy in members]
    alone = {policy.label for policy in members if models.count(policy.model) == 1 and not on_main}
    names = {row["run"]: row["policy"] + ("" if row["run"] in alone else f" ({row['run']})") for row in rows}
    return OtherTable(name, names[reference.label], names, rows)


def as_cells(table: OtherTable) -> list[list[str]]:
    """Return the titles and rows of a table as texts."""
    figures = dict.fromkeys(
        key for row in table.rows for key in row if key not in ("policy", "run", "score", "low", "high")
    )
    more = [key for key in shown_parts(figures) if not key.startswith("pass_at_")]
    titles = ["policy", "score [95 % interval]", f"difference to {table.reference}", *(_named(key) for key in more)]
    rows = []
    for row in table.rows:
        cells = [table.names[row["run"]], _with_interval(row["score"], row["low"], row["high"])]
        cells.append(
            _with_interval(row["gain"], row["gain_low"], row["gain_high"], sign="+") if GAIN[0] in row else "-"
        )
        rows.append([*cells, *(part_cell(row, key) for key in more)])
    return [titles, *rows]


def _named(key: str) -> str:
    return key.removeprefix("reward_").removeprefix("score_")


def _with_interval(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
