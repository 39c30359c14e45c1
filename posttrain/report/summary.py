"""The figures of a report: one small object per policy, and what a gain over the reference consists of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from posttrain.compare.paired import against
from posttrain.report.policies import Policy, reference
from posttrain.rewards.usage import NAMES as JUDGED
from posttrain.tasks.task import load_task

SUMMARY = "report/summary.json"
HEADLINE = "report/headline.json"
"""Only the scores; in git, so that those of any commit can be read."""

Figures = Mapping[str, float]

_FIRST = ("score", "low", "high", "greedy", "parsed", "truncated", "length")
_RENAMED = {"score_low": "low", "score_high": "high", "kl_k1": "kl"}
"""Key of results/*/metrics.json -> column of summary.json. k1 is the estimate of KL whose tail is light."""
GAIN = ("gain", "gain_low", "gain_high")
"""The paired difference to the reference on the same prompts, and its interval."""
NOT_MEASURED = "not measured"
SCORES = ("score", "low", "high", "greedy", "pass_at_1")
"""The figures that say nothing of a policy without a readable answer."""
_LEFT_OUT = re.compile(r"kl_k3|pass_at_(?!1$)\d+|maj_at_\d+|best_of_\d+_by_.+")


def summarize(policies: Iterable[Policy], rewards: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Label -> figures of every policy, with the paired difference to the reference; then those of reward models."""
    found = {policy.label: policy for policy in policies}
    summary = {label: _figures(policy.metrics) for label, policy in found.items()}
    if (base := reference(found.values())) in found:
        others = {label: policy.rollouts for label, policy in found.items() if label != base}
        for label, finding in against(found[base].rollouts, others).items():
            summary[label] |= dict(zip(GAIN, (finding.mean, finding.low, finding.high), strict=True))
    for name, metrics in rewards.items():
        if "heldout_accuracy" in metrics:
            summary[name] = {"accuracy": float(metrics["heldout_accuracy"])}
    return summary


def headline(summary: Mapping[str, Figures]) -> dict[str, float]:
    """Label -> score of every policy that could be measured, and the accuracy of every reward model."""
    accuracies = {name: figures["accuracy"] for name, figures in reward_figures(summary).items()}
    measured = {name: figures for name, figures in policy_figures(summary).items() if is_measured(figures)}
    return {**{name: figures["score"] for name, figures in measured.items()}, **accuracies}


def score_name(summary: Mapping[str, Figures]) -> str:
    """Return the name of the score: pass@1 if every rollout is right or wrong."""
    return "pass@1" if all("pass_at_1" in figure for figure in policy_figures(summary).values()) else "score"


def extra_columns(summary: Mapping[str, Figures]) -> list[str]:
    """Return the columns that depend on the rewards and the task of an evaluation."""
    keys = dict.fromkeys(key for figure in policy_figures(summary).values() for key in figure)
    return [key for key in keys if key not in (*_FIRST, *GAIN, *JUDGED, "pass_at_1", "kl")]


def tasks_of(policies: Iterable[Policy]) -> dict[str, str]:
    """Label -> the task that all prompts of the evaluation belong to; none where there are several."""
    named = {policy.label: policy.rollouts["task"].unique().to_list() for policy in policies}
    return {label: found[0] for label, found in named.items() if len(found) == 1}


def to_json(summary: Mapping[str, Figures], tasks: Mapping[str, str]) -> dict[str, Any]:
    """Return the summary as JSON: lists of rows with equal keys, which DVC can plot."""
    keys = dict.fromkeys(key for figure in policy_figures(summary).values() for key in figure)
    rows = [
        {"policy": name, "task": tasks.get(name), **{key: figures.get(key) for key in keys}}
        for name, figures in policy_figures(summary).items()
    ]
    rewards = [{"reward_model": name, **figures} for name, figures in reward_figures(summary).items()]
    return {"policies": rows, **({"reward_models": rewards} if rewards else {})}


def from_json(kept: Mapping[str, Any]) -> dict[str, Figures]:
    """Return the inverse of `to_json`."""
    found: dict[str, Figures] = {}
    for group, name in (("policies", "policy"), ("reward_models", "reward_model")):
        for row in kept.get(group, []):
            found[row[name]] = {
                key: value for key, value in row.items() if key not in (name, "task") and value is not None
            }
    return found


def policy_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the part of a summary that is about policies."""
    return {name: figures for name, figures in summary.items() if "score" in figures}


def is_measured(figures: Figures) -> bool:
    """Return whether any completion has an answer that could be read; if none has, its scores say nothing."""
    return figures.get("parsed") != 0


def reward_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the part of a summary that is about reward models."""
    return {name: figures for name, figures in summary.items() if "accuracy" in figures}


def reference_of(summary: Mapping[str, Figures]) -> str:
    """Return the policy that KL was measured against; its own is 0."""
    return next((name for name, figures in policy_figures(summary).items() if figures.get("kl") == 0.0), "reference")


def gains(summary: Mapping[str, Figures], tasks: Mapping[str, str]) -> str:
    """Return one sentence: what each run's gain over the reference consists of, as the task explains it."""
    parts = gain_parts(summary, tasks)
    return f"What the gain over {reference_of(summary)} consists of: {'; '.join(parts)}." if parts else ""


def gain_parts(summary: Mapping[str, Figures], tasks: Mapping[str, str]) -> list[str]:
    """Return the same, one part for each policy that comes after the reference and whose task can explain a gain."""
    policies, base = policy_figures(summary), reference_of(summary)
    names = list(policies)
    if base not in names:
        return []
    after = names[names.index(base) + 1 :]
    return [part for name in after if (part := _part(name, policies[base], policies[name], tasks.get(name)))]


def _part(name: str, before: Figures, after: Figures, task: str | None) -> str:
    explain = load_task(task or "").explain
    if explain is None:
        return ""
    if not is_measured(after):
        return f"{name} is not measured (no completion has an answer that can be read)"
    if not is_measured(before):
        return f"{name} cannot be compared (of the reference no completion has an answer that can be read)"
    if "gain" not in after:
        return f"{name} cannot be compared (other prompts could be scored)"
    if after["gain_high"] < 0:
        return f"{name} lost {-after['gain']:.2f}"
    if after["gain_low"] <= 0:
        interval = f"{after['gain']:+.2f} [{after['gain_low']:+.2f}, {after['gain_high']:+.2f}]"
        return f"{name} is not clearly different ({interval} on the same prompts)"
    return explain(name, before, after)


def _figures(metrics: Mapping[str, float]) -> dict[str, float]:
    found = {_RENAMED.get(key, key): float(value) for key, value in metrics.items() if not _LEFT_OUT.fullmatch(key)}
    return {key: found[key] for key in (*(name for name in _FIRST if name in found), *found)}
