"""Metrics of a round of samples: each part of the reward, groups with a signal, the gap of sampler and trainer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from posttrain.formulas.policy import k3
from posttrain.online.reward_monitor import has_zero_variance
from posttrain.online.rollout_params import RolloutParams
from posttrain.rollout import FAILED, Rollout
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch


def reward_metrics(names: Iterable[str], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean and deviation of each part over the rollouts that it could score, and the share with status `ok`."""
    found: dict[str, float] = {}
    for name in names:
        scores = [rollout.scores[name] for rollout in rollouts]
        values = [score.value for score in scores if score.status not in FAILED]
        if values:
            found[f"reward_{name}"] = sum(values) / len(values)
            found[f"reward_{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        found[f"reward_{name}_ok"] = sum(score.status == "ok" for score in scores) / len(scores)
    return found


def groups_with_signal(groups: Sequence[Batch]) -> float:
    """Return the share of groups whose rewards differ."""
    return sum(not has_zero_variance(group.columns.rows["reward"]) for group in groups) / len(groups)


def sampler_metrics(models: ModelSet, batch: Batch, params: RolloutParams) -> dict[str, float]:
    """Return how the log-probs of the trainer's weights differ from the sampler's, on some rows of a new round.

    On all rows where the trainer has recomputed them for a correction. `sampler_gap`: abs of the difference, mean and
    largest, where both have the same weights. `sampler_kl`: KL(sampler || trainer) by k3, where the sampler is another
    engine or has the weights of a round before.
    """
    rows = params.gap_rows
    if not rows and not params.foreign:
        return {}
    if "recomputed_logp" not in batch.columns.tokens:
        rows = rows or 1
        batch = batch.select(range(0, len(batch), max(len(batch) // rows, 1))[:rows])
        training = models.policy.training
        models.policy.eval()  # dropout would draw random numbers
        batch = models.add_scored_columns(batch, frozenset({"recomputed_logp"}))
        models.policy.train(training)
    tokens = batch.columns.tokens
    log_ratio = tokens["recomputed_logp"] - tokens["old_logp"]
    found: dict[str, float] = {}
    if not params.ahead and params.gap_rows:
        found = {"sampler_gap": float(log_ratio.abs().mean()), "sampler_gap_max": float(log_ratio.abs().max())}
    if params.foreign:
        found["sampler_kl"] = float(k3(tokens["old_logp"].double(), tokens["recomputed_logp"].double()).mean())
    return found
