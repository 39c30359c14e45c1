"""The metrics of a training step: their meaning, and when to worry (docs/reference/watching.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

END = 0.1
"""The last fraction of a run, whose mean is compared with the limits."""


@dataclass(frozen=True)
class Metric:
    """A row of the table in Markdown. A run whose end is outside `low` and `high` needs attention."""

    names: tuple[str, ...]
    meaning: str
    worry: str
    low: float = -inf
    high: float = inf
    judged: tuple[str, ...] = ()
    """The names that `low` and `high` apply to; empty: all."""


METRICS = (
    Metric(("reward", "reward_std"), "mean and deviation of the sum", "the deviation goes to 0"),
    Metric(("reward_NAME", "reward_NAME_std"), "the same of each part", "one part rises and the others fall"),
    Metric(
        ("reward_NAME_ok",),
        "share of completions with status `ok` ([rewards](rewards.md#the-status-of-a-score))",
        "it falls",
    ),
    Metric(
        ("reward_NAME_failed",),
        "completions that it could not score, which its mean leaves out (missing: none)",
        "it rises: above `max_failed` the run ends",
    ),
    Metric(
        ("groups_with_signal",),
        "share of groups whose rewards differ, so that they have a gradient",
        "below 0.1: other prompts, larger `group_size`, `resample`",
        low=0.1,
    ),
    Metric(("entropy",), "nats per token", "it collapses early: `limits.entropy`, or the bonus `entropy`"),
    Metric(("kl_k1", "kl_k2", "kl_k3"), "KL to the reference per token, with `kl`", "it keeps rising: `limits.kl`"),
    Metric(
        ("ratio", "ratio_min", "ratio_max"),
        "policy over sampling policy",
        "beyond 10: fewer `epochs` or `minibatches`, a lower `lr`",
        high=10,
    ),
    Metric(
        ("ratio_ess",),
        "effective sample size of these ratios, (Σ r)² / (n Σ r²)",
        "below 0.5: the samples are too old",
        low=0.5,
    ),
    Metric(
        ("clip_fraction", "clip_low", "clip_high"),
        "share of clipped tokens: all, ratio below 1, ratio above 1",
        "above 0.2",
        high=0.2,
    ),
    Metric(
        ("correction", "correction_ess"),
        "mean and effective sample size of the weights of `correction`",
        "below 0.5",
        low=0.5,
    ),
    Metric(
        ("sampler_gap", "sampler_gap_max"),
        "difference of the log-probs of sampler and trainer, nats per token",
        "above 0.01 in float32, 0.05 in bf16",
        high=0.05,
        judged=("sampler_gap",),
    ),
    Metric(
        ("sampler_kl",),
        "KL(sampler ‖ trainer) per token, with `rollout.engine: vllm` or `ahead: 1` ([vLLM](sampling.md#vllm))",
        "above 0.01 with `ahead: 0`",
        high=0.01,
    ),
    Metric(
        ("length", "truncated"),
        "sampled tokens, share cut at `max_tokens`",
        "both rise: raise `max_tokens`, or punish length",
    ),
    Metric(("grad_norm", "lr"), "gradient before clipping, learning rate", "`limits.gradient`"),
    Metric(
        ("balance_loss", "expert_load_max", "..."),
        "[mixtures of experts](models.md#mixtures-of-experts)",
        "loads far from 1: raise `router.balance`",
    ),
    Metric(("heldout_true", "heldout_proxy"), "with `watch`", "the proxy rises and the true reward falls"),
    Metric(
        ("heldout_reward_NAME", "heldout_reward_NAME_failed"),
        "a metric of `watch.metrics`; completions without a value of it, which its mean leaves out",
        "it falls while the true reward rises",
    ),
    Metric(
        ("heldout_loss", "heldout_score", "heldout_accuracy"),
        "with `watch`, of runs that learn from a table",
        "the loss rises, the score falls",
    ),
    Metric(
        ("heldout_both_fell",),
        "share of held-out pairs both of whose answers are less likely than at the start",
        "above 0.5: the probability goes to other answers",
        high=0.5,
    ),
)


def table_rows() -> list[str]:
    """Return the rows of the table in docs/reference/watching.md."""
    return [
        f"| {', '.join(name if name == '...' else f'`{name}`' for name in row.names)} | {row.meaning} | {row.worry} |"
        for row in METRICS
    ]


def listed() -> str:
    """Return the same as text."""
    return "\n".join(
        f"{', '.join(row.names)}\n    {plain(row.meaning)}. When to worry: {plain(row.worry)}" for row in METRICS
    )


def metric_named(name: str) -> Metric | None:
    """Return the row of a metric, by its own name or as part of a reward."""
    exact = next((row for row in METRICS if name in row.names), None)
    if exact or not name.startswith("reward_"):
        return exact
    ends = next((end for end in ("_ok", "_std", "_failed") if name.endswith(end)), "")
    return metric_named(f"reward_NAME{ends}")


def about(name: str) -> str:
    """Return a metric's meaning and when to worry, as plain text; empty if it has no row."""
    row = metric_named(name)
    return "" if row is None else plain(f"{row.meaning}. When to worry: {row.worry}.")


def plain(markdown: str) -> str:
    """Return a text without links and code marks."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown).replace("`", "")


def worries(columns: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return warnings about the end of a run, from its curves; empty if no value is out of range."""
    found = []
    for name, column in columns.items():
        row, values = metric_named(name), [value for value in column if value is not None]
        if row is None or not values or (row.judged and name not in row.judged):
            continue
        last = values[-max(1, round(len(values) * END)) :]
        end = sum(last) / len(last)
        if not row.low <= end <= row.high:
            found.append(f"{name} {end:.3g}: {plain(row.worry)}")
    return found


def health(curves: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return run -> warnings about its end, for runs with a metric that has limits."""
    return {curve["label"]: worries(curve["columns"]) for curve in curves if any(map(_limited, curve["columns"]))}


def _limited(name: str) -> bool:
    row = metric_named(name)
    return row is not None and (row.low, row.high) != (-inf, inf)
