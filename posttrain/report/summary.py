"""The figures of a report: one small object per policy, and what a gain over the reference consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.report.policies import Policy

SUMMARY = "report/summary.json"
HEADLINE = "report/headline.json"
"""The one metric of the pipeline: with every figure of every policy, `dvc exp show` has no room for the settings."""

Figures = Mapping[str, float]

# Column of summary.json -> key of results/*/metrics.json. k1 is the estimate of KL whose tail is light.
_COLUMNS = {
    "pass_at_1": "pass_at_1",
    "low": "pass_at_1_low",
    "high": "pass_at_1_high",
    "greedy": "greedy",
    "format": "format",
    "parsed": "parsed",
    "truncated": "truncated",
    "length": "length",
    "working": "working",
    "right_given_working": "right_given_working",
    "kl": "kl_k1",
}


def summarize(policies: Iterable[Policy], rewards: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Label -> figures of every policy; then the accuracy of every reward model."""
    summary = {policy.label: _figures(policy.metrics) for policy in policies}
    for name, metrics in rewards.items():
        if "heldout_accuracy" in metrics:
            summary[name] = {"accuracy": float(metrics["heldout_accuracy"])}
    return summary


def headline(summary: Mapping[str, Figures]) -> dict[str, float]:
    """Label -> pass@1 of every policy, and the accuracy of every reward model."""
    accuracies = {name: figures["accuracy"] for name, figures in reward_figures(summary).items()}
    return {**{name: figures["pass_at_1"] for name, figures in policy_figures(summary).items()}, **accuracies}


def to_json(summary: Mapping[str, Figures]) -> dict[str, Any]:
    """As it is kept: lists of rows with equal keys, which is what DVC can draw."""
    keys = dict.fromkeys(key for one in policy_figures(summary).values() for key in one)
    rows = [{"policy": name, **{key: one.get(key) for key in keys}} for name, one in policy_figures(summary).items()]
    rewards = [{"reward_model": name, **figures} for name, figures in reward_figures(summary).items()]
    return {"policies": rows, **({"reward_models": rewards} if rewards else {})}


def from_json(kept: Mapping[str, Any]) -> dict[str, Figures]:
    """The summary that `to_json` made this of."""
    found: dict[str, Figures] = {}
    for group, name in (("policies", "policy"), ("reward_models", "reward_model")):
        for row in kept.get(group, []):
            found[row[name]] = {key: value for key, value in row.items() if key != name and value is not None}
    return found


def policy_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """The part of a summary that is about policies."""
    return {name: figures for name, figures in summary.items() if "pass_at_1" in figures}


def reward_figures(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """The part of a summary that is about reward models."""
    return {name: figures for name, figures in summary.items() if "accuracy" in figures}


@dataclass(frozen=True)
class Gain:
    """What pass@1 gained over the reference, split into exact parts."""

    total: float
    by_working: float
    """From showing working more often."""
    by_accuracy: float
    """From being right more often, with working and without."""

    @property
    def share(self) -> float:
        """The part of the total that comes from showing working more often."""
        return self.by_working / self.total


def gain(before: Figures, after: Figures) -> Gain:
    """`p = w a + (1 - w) b`, hence `dp = dw mean(a - b) + mean(w) da + mean(1 - w) db`, exactly."""
    (w0, a0, b0), (w1, a1, b1) = _parts(before), _parts(after)
    total = after["pass_at_1"] - before["pass_at_1"]
    by_working = (w1 - w0) * ((a0 - b0) + (a1 - b1)) / 2
    return Gain(total, by_working, total - by_working)


def reference_of(summary: Mapping[str, Figures]) -> str:
    """The policy that KL was measured against; its own is 0."""
    return next((name for name, one in policy_figures(summary).items() if one.get("kl") == 0.0), "reference")


def gains(summary: Mapping[str, Figures]) -> str:
    """One sentence: how far each run's gain over the reference is more working, how far better answers."""
    parts = gain_parts(summary)
    return f"What the gain over {reference_of(summary)} consists of: {'; '.join(parts)}." if parts else ""


def gain_parts(summary: Mapping[str, Figures]) -> list[str]:
    """The same, one part for each policy that comes after the reference."""
    policies, base = policy_figures(summary), reference_of(summary)
    names = list(policies)
    if base not in names or not {"working", "right_given_working"} <= policies[base].keys():
        return []
    return [_sentence_part(name, policies[base], policies[name]) for name in names[names.index(base) + 1 :]]


def _sentence_part(name: str, before: Figures, after: Figures) -> str:
    if after.get("parsed") == 0:
        return f"{name} is not measured (no completion has an answer that can be read)"
    if before.get("parsed") == 0:
        return f"{name} cannot be compared (of the reference no completion has an answer that can be read)"
    if after["high"] < before["low"]:
        return f"{name} lost {before['pass_at_1'] - after['pass_at_1']:.2f}"
    if after["low"] <= before["high"]:
        return f"{name} is not clearly different (the intervals overlap)"
    found = gain(before, after)
    return (
        f"{name} gained {found.total:.2f}, of which {found.by_working:+.2f} ({100 * found.share:.0f} %) by showing its "
        f"working more often (in {before['working']:.2f} → {after['working']:.2f} of the completions) and "
        f"{found.by_accuracy:+.2f} by being right more often (accuracy given working "
        f"{before['right_given_working']:.2f} → {after['right_given_working']:.2f})"
    )


def _parts(figures: Figures) -> tuple[float, float, float]:
    """The share with working, the accuracy with it, and the accuracy without it."""
    share, accuracy = figures["working"], figures["right_given_working"]
    rest = (figures["pass_at_1"] - share * accuracy) / (1 - share) if share < 1 else accuracy
    return share, accuracy, max(rest, 0.0)


def _figures(metrics: Mapping[str, float]) -> dict[str, float]:
    return {column: float(metrics[key]) for column, key in _COLUMNS.items() if key in metrics}
