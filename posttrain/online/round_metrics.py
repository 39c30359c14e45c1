"""Metrics of a round of samples: each part of the reward, groups with a signal, the gap of sampler and trainer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from posttrain.online.reward_monitor import has_zero_variance
from posttrain.rollout import FAILED, Rollout
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch


def reward_metrics(names: Iterable[str], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean and deviation of each part over the rollouts that it could score, and the share with status `ok`."""
    found: dict[str, float] = {}
    for name in names:
        scores = [one.scores[name] for one in rollouts]
        values = [score.value for score in scores if score.status not in FAILED]
        if values:
            found[f"reward_{name}"] = sum(values) / len(values)
            found[f"reward_{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        found[f"reward_{name}_ok"] = sum(score.status == "ok" for score in scores) / len(scores)
    return found


def groups_with_signal(groups: Sequence[Batch]) -> float:
    """The share of groups whose rewards differ."""
    return sum(not has_zero_variance(group.columns.rows["reward"]) for group in groups) / len(groups)


def sampler_gap(models: ModelSet, batch: Batch, rows: int) -> dict[str, float]:
    """abs(log-prob of the trainer - that of the sampler), mean and largest, of some rows sampled with these weights.

    Of all rows where the trainer has recomputed them for a correction.
    """
    if not rows:
        return {}
    if "recomputed_logp" not in batch.columns.tokens:
        batch = batch.select(range(0, len(batch), max(len(batch) // rows, 1))[:rows])
        training = models.policy.training
        models.policy.eval()  # dropout would draw random numbers
        batch = models.add_scored_columns(batch, frozenset({"recomputed_logp"}))
        models.policy.train(training)
    tokens = batch.columns.tokens
    gap = (tokens["recomputed_logp"] - tokens["old_logp"]).abs()
    return {"sampler_gap": float(gap.mean()), "sampler_gap_max": float(gap.max())}
