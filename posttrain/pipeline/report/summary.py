"""The metrics of a report: a small mapping per policy, the table's cells, and the sources of a gain."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from posttrain.evaluate.intervals import FAILED_COUNT, failures_note
from posttrain.pipeline.compare.words import CANNOT_TELL, judged
from posttrain.pipeline.report.markup import NOT_MEASURED, UNREAD
from posttrain.pipeline.report.policies import Policy
from posttrain.rewards.usage import NAMES as JUDGED
from posttrain.tasks.task import load_task

SUMMARY = "report/summary.json"
HEADLINE = "report/headline.json"
"""The file with only the scores. It is in git, so that the scores of any commit can be read."""

Figures = Mapping[str, float]

_FIRST = ("score", "low", "high", "greedy", "parsed", "truncated", "length")
_RENAMED = {"score_low": "low", "score_high": "high", "kl_k1": "kl"}
"""Key in results/*/metrics.json -> column in summary.json. k1 is the KL estimate with the lighter tail."""
GAIN = ("gain", "gain_low", "gain_high")
"""The paired difference to the reference on the same prompts, and its interval."""
SEEDS = ("seeds", "over_seeds")
"""The number of trainings behind a row, and whether the interval of its difference covers seeds too."""
FELL = "fell_"
"""The name prefix of a guarded metric (`must_not_fall`) that is clearly lower than in the baseline row."""
BOUNDS = ("_low", "_high")
SCORES = ("score", "low", "high", "greedy", "pass_at_1")
"""The metrics that are meaningless if no reward judges the prompts."""
_LEFT_OUT = re.compile(r"kl_k3|pass_at_(?!1$)\d+|maj_at_\d+|best_of_\d+_by_.+")


def summarize(policies: Iterable[Policy], rewards: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return label -> metrics for every policy, then for reward models."""
    summary = {policy.label: figures_of(policy.metrics) for policy in policies}
    for name, metrics in rewards.items():
        if "heldout_accuracy" in metrics:
            summary[name] = {"accuracy": float(metrics["heldout_accuracy"])}
    return summary


def headline(summary: Mapping[str, Figures]) -> dict[str, float]:
    """Return label -> score of every measured policy, and accuracy of every reward model."""
    accuracies = {name: figures["accuracy"] for name, figures in reward_figures(summary).items()}
    measured = {name: figures for name, figures in policy_figures(summary).items() if is_measured(figures)}
    return {**{name: figures["score"] for name, figures in measured.items()}, **accuracies}


def score_name(summary: Mapping[str, Figures]) -> str:
    """Return the name of the score: pass@1 if every rollout is right or wrong."""
    return "pass@1" if all("pass_at_1" in figure for figure in policy_figures(summary).values()) else "score"


def extra_columns(summary: Mapping[str, Figures]) -> list[str]:
    """Return the columns that depend on an evaluation's rewards and task."""
    return shown_parts(key for figure in policy_figures(summary).values() for key in figure)


def shown_parts(keys: Iterable[str]) -> list[str]:
    """Return the metrics that get a column. Intervals and failure counts appear in the cell of their metric."""
    known = dict.fromkeys(keys)
    parts = dict.fromkeys(key.removesuffix(FAILED_COUNT) if key.startswith("reward_") else key for key in known)
    others = (*_FIRST, *GAIN, *SEEDS, *JUDGED, "pass_at_1", "judged", "kl")
    return [key for key in parts if key not in others and not key.startswith(FELL) and not _is_bound(key, known)]


def _is_bound(key: str, known: Container[str]) -> bool:
    return any(key.endswith(end) and key.removesuffix(end) in known for end in BOUNDS)


def part_cell(figures: Figures, key: str) -> str:
    """Return a part's mean, with its interval and the number of completions without a value, if known."""
    low, high = (figures.get(f"{key}{end}") for end in BOUNDS)
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{_number(figures, key, 3)}{interval}{failures_note(figures, key)}"


def tasks_of(policies: Iterable[Policy]) -> dict[str, str]:
    """Return label -> the evaluation's task; evaluations with several tasks are left out."""
    named = {policy.label: policy.rollouts["task"].unique().to_list() for policy in policies}
    return {label: names[0] for label, names in named.items() if len(names) == 1}


def to_json(
    summary: Mapping[str, Figures],
    settings: Mapping[str, Figures],
    tasks: Mapping[str, str],
    members: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return policies, reward models and the main table as JSON, in lists of rows with equal keys for DVC's plots.

    `settings`: the rows of the table. `tasks`: of policies and settings. `members`: the policies of a setting.
    """
    rows = _rows("setting", settings, tasks)
    rewards = [{"reward_model": name, **figures} for name, figures in reward_figures(summary).items()]
    return {
        "policies": _rows("policy", policy_figures(summary), tasks),
        "settings": [row | {"policies": ", ".join(members[row["setting"]])} for row in rows],
        **({"reward_models": rewards} if rewards else {}),
    }


def from_json(document: Mapping[str, Any]) -> dict[str, Figures]:
    """Return the policies and reward models that were passed to `to_json`."""
    return _figures_in(document, "policies", "policy") | _figures_in(document, "reward_models", "reward_model")


def settings_in(document: Mapping[str, Any]) -> dict[str, Figures]:
    """Return the rows of the main table and the reward models that were passed to `to_json`."""
    return _figures_in(document, "settings", "setting") | _figures_in(document, "reward_models", "reward_model")


def _rows(title: str, figures_by_label: Mapping[str, Figures], tasks: Mapping[str, str]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for figures in figures_by_label.values() for key in figures)
    return [
        {title: name, "task": tasks.get(name), **{key: figures.get(key) for key in keys}}
        for name, figures in figures_by_label.items()
    ]


def _figures_in(document: Mapping[str, Any], group: str, title: str) -> dict[str, Figures]:
    return {
        row[title]: {key: value for key, value in row.items() if isinstance(value, int | float)}
        for row in document.get(group, [])
    }


def trainings(policies: Mapping[str, Figures], members: Mapping[str, Sequence[str]]) -> dict[str, list[Figures]]:
    """Return setting -> metrics of each distinct training. `members`: the setting's policies."""
    by_setting: dict[str, list[Figures]] = {}
    for setting, names in members.items():
        for figures in (policies[name] for name in names if name in policies):
            if figures not in by_setting.setdefault(setting, []):
                by_setting[setting].append(figures)
    return by_setting


def trainings_in(document: Mapping[str, Any]) -> dict[str, list[Figures]]:
    """Return the metrics of each training from the result of `to_json`."""
    return trainings(
        from_json(document), {row["setting"]: row["policies"].split(", ") for row in document.get("settings", ())}
    )


def policy_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the policies in a summary."""
    return {name: figures for name, figures in summary.items() if "score" in figures}


def is_measured(figures: Figures) -> bool:
    """Tell whether a reward judges the prompts. Otherwise the score is meaningless."""
    return figures.get("judged") != 0


def is_read(figures: Figures) -> bool:
    """Tell whether any completion has a readable answer. Otherwise no difference is tested."""
    return figures.get("parsed") != 0


def score_cell(figures: Figures) -> str:
    """Return a score with its interval, or a note if no answer could be read."""
    if not is_measured(figures):
        return NOT_MEASURED
    shown = f"{figures['score']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]"
    return shown if is_read(figures) else f"{shown} ({UNREAD})"


def reward_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the reward models in a summary."""
    return {name: figures for name, figures in summary.items() if "accuracy" in figures}


def reference_of(summary: Mapping[str, Figures]) -> str:
    """Return the reference policy for the KL. Its own KL is 0, unless it is pooled with other seeds."""
    return next((name for name, figures in policy_figures(summary).items() if figures.get("kl") == 0.0), "reference")


def subtracted(summary: Mapping[str, Figures]) -> str:
    """Return the baseline row of the tests: the row without a difference, if other rows have a difference."""
    rows = policy_figures(summary)
    without = [name for name, figures in rows.items() if is_read(figures) and GAIN[0] not in figures]
    if not without or not any(GAIN[0] in figures for figures in rows.values()):
        return reference_of(summary)
    return min(without, key=lambda name: rows[name].get("kl") != 0.0)


def verdict(figures: Figures) -> str:
    """Return a verdict on a difference: better, worse or cannot tell. `(1 seed)`: it holds only for these trainings."""
    if "gain" not in figures:
        return ""
    fell = [f"{key.removeprefix(FELL)} fell {change:+z.3f}" for key, change in figures.items() if key.startswith(FELL)]
    return "; ".join([_by_score(figures), *fell])


def _by_score(figures: Figures) -> str:
    if figures["gain_low"] <= 0 <= figures["gain_high"]:
        return CANNOT_TELL
    better = "better" if figures["gain"] > 0 else "worse"
    return judged(better, over_seeds=bool(figures.get("over_seeds")))


def result_titles(summary: Mapping[str, Figures], against: str | None = None) -> list[str]:
    """Return the titles of the columns."""
    extra = [key.removeprefix("reward_") for key in extra_columns(summary)]
    base = against or subtracted(summary)
    seeds = ["seeds"] if _has_seeds(summary) else []
    score = [f"{score_name(summary)} [95 % interval]", f"minus {base} [95 %, Holm]", "verdict"]
    return ["setting", *seeds, *score, "greedy", *extra, "truncated", "length", f"KL to {reference_of(summary)}"]


def _has_seeds(summary: Mapping[str, Figures]) -> bool:
    return any(figures.get("seeds", 1) > 1 for figures in summary.values())


def result_rows(summary: Mapping[str, Figures]) -> list[list[str]]:
    """Return a row for each setting."""
    extra = extra_columns(summary)
    return [
        [
            name,
            *([f"{figures.get('seeds', 1):.0f}"] if _has_seeds(summary) else []),
            score_cell(figures),
            f"{figures['gain']:+z.3f} [{figures['gain_low']:+z.3f}, {figures['gain_high']:+z.3f}]"
            if "gain" in figures
            else "-",
            verdict(figures),
            _number(figures, "greedy", 3) if is_measured(figures) else NOT_MEASURED,
            *(part_cell(figures, key) for key in (*extra, "truncated")),
            _number(figures, "length", 1),
            _number(figures, "kl", 2),
        ]
        for name, figures in policy_figures(summary).items()
    ]


def _number(figures: Figures, key: str, digits: int) -> str:
    return f"{figures[key]:z.{digits}f}" if key in figures else "-"


def gains(summary: Mapping[str, Figures], tasks: Mapping[str, str], trained: Mapping[str, Sequence[Figures]]) -> str:
    """Return one sentence about the source of each gain over the baseline, as explained by the task."""
    parts = gain_parts(summary, tasks, trained)
    return f"The parts of the gain over {subtracted(summary)}: {'; '.join(parts)}." if parts else ""


def gain_parts(
    summary: Mapping[str, Figures], tasks: Mapping[str, str], trained: Mapping[str, Sequence[Figures]]
) -> list[str]:
    """Return a list of gains: one for each row that beats the baseline and whose task can explain the gain.

    `trained`: the metrics of each training of a row, if there are several.
    """
    policies = policy_figures(summary)
    other = subtracted(summary)
    base = policies.get(other)
    if base is None or not is_read(base):
        return []
    explained = ((name, figures, load_task(tasks.get(name) or "").explain) for name, figures in policies.items())
    return [
        explain(name, trained.get(other, [base]), trained.get(name, [figures]))
        for name, figures, explain in explained
        if explain and is_read(figures) and figures.get("gain_low", 0.0) > 0
    ]


def figures_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of an evaluation under their names in a summary."""
    figures = {_RENAMED.get(key, key): float(value) for key, value in metrics.items() if not _LEFT_OUT.fullmatch(key)}
    return {key: figures[key] for key in (*(name for name in _FIRST if name in figures), *figures)}
