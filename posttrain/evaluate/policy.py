"""Score the completions of one policy. Stages and calls both use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.metrics import evaluation_metrics
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model, and its scored samples."""

    metrics: dict[str, float]
    """The mean reward `score` with its 95 % interval over prompts, pass@k, each reward, length, and others."""
    rollouts: list[Rollout]
    """The scored samples. Samples of one prompt are adjacent."""
    greedy: list[Rollout]
    """The greedy completion of each prompt; empty for an evaluation by likelihoods."""
    scorer: RewardSum | None = None
    """The scorer. `total(rollout)` is the weighted sum of a rollout's scores. None: likelihoods."""

    completions: SampledCompletions | None = None
    """The completions without scores, for `score_completions` with other rewards. None: likelihoods."""


def scored_completions(
    config: EvaluateConfig, completions: SampledCompletions, scorer: RewardSum, where: str
) -> Evaluation:
    """Score completions and compute the metrics."""
    sampled, greedy = (_scored(scorer, rollouts) for rollouts in (completions.rollouts, completions.greedy))
    FailureLimit(scorer, config.max_failed, where).check([*sampled, *greedy])
    metrics = evaluation_metrics(scorer, sampled, greedy, config.seed) | dict(completions.metrics)
    return Evaluation(metrics, sampled, greedy, scorer, completions)


def _scored(scorer: RewardSum, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts with their scores. A score that needed the policy's weights stays."""
    return [
        replace(scored, scores={**scored.scores, **rollout.scores})
        for rollout, scored in zip(rollouts, scorer.score(rollouts), strict=True)
    ]
