"""Measure the true reward and the proxy of a policy on held-out prompts, for `watch`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, Field

from posttrain.distributed import world
from posttrain.errors import DataError
from posttrain.evaluate.intervals import Floats, part_figures
from posttrain.evaluate.watch import METRIC, Measure
from posttrain.evaluate.watch_rules import Measured
from posttrain.rewards.catalog import Metrics, Rewards, learned, refuse_metrics, with_metrics
from posttrain.rewards.failures import MAX_FAILED, FailureLimit
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum, scored_by_first
from posttrain.rollout import FAILED, Prompt, Rollout
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler
from posttrain.sampling.sampler import (
    Sampler,
    SamplingParams,
    check_capacity,
    encode_prompts,
    generate_rollouts,
    rest,
)
from posttrain.settings.params import Params
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import row_variables

if TYPE_CHECKING:
    import polars as pl

    from posttrain.evaluate.table_watch import DemonstrationWatch
    from posttrain.train.loop import TrainingRun


def sampled_demonstrations(
    run: TrainingRun, params: DemonstrationWatch, loss: Measure, rows: pl.DataFrame, text: ChatText, where: str
) -> Measure:
    """Return a measure that samples and scores the prompts of demonstrations, in addition to measuring their loss."""
    with_tools = rows.filter(rows["tools"].is_not_null()) if "tools" in rows.columns else rows.clear()
    if len(with_tools):
        what = f"row {with_tools['id'][0]} has tools, which samples would not see"
        raise DataError(what=what, where=f"{where}.reward", fix="Remove it; the held-out loss is then watched instead")
    shown = [
        Prompt(
            row["id"],
            row["messages"][:-1],
            (),
            row["messages"][-1]["content"],
            problem=row["problem"],
            variables=row_variables(row),
        )
        for row in rows.iter_rows(named=True)
    ]
    prompts = scorable_prompts(params.reward or {}, encode_prompts(text, shown), where)
    sampling = SamplingParams(max_tokens=params.max_tokens)
    check_capacity(text.context, [prompt.ids for prompt in prompts], len(prompts) * params.samples, sampling, where)
    terms = with_metrics(params.reward or {}, params.metrics or {})
    reward = RewardSum(terms, Context(run.models.runtime, where, None, text, params.max_tokens))
    sampler = DistributedSampler(LocalSampler(run.models.policy, text.stops, run.models.runtime, section=where))
    sampled = HeldoutRewards(
        sampler, run.models.policy, text, prompts, sampling,
        samples=params.samples, seed=run.params.seed, rewards=(reward, reward), max_failed=MAX_FAILED, where=where,
    )  # fmt: skip

    def measure() -> Measured:
        rewards, losses = sampled(), loss()
        return rewards._replace(proxy_P=losses.proxy_P, figures={**losses.figures, **rewards.figures})

    return measure


class _Terms(Params):
    """The rewards and metrics of a run that samples without a reward model."""

    reward: Annotated[Rewards, AfterValidator(refuse_metrics)] = Field(
        description="rewards that decide which evaluation is best"
    )
    metrics: Metrics = Field({}, description="rewards that are measured but not counted")


def terms_of(reward: dict[str, Any], metrics: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the typed rewards and metrics of a run that samples without a reward model."""
    typed = _Terms.model_validate({"reward": reward, "metrics": metrics or {}})
    terms = with_metrics(typed.reward, typed.metrics)
    if odd := [*learned(terms), *(name for name, one in terms.items() if one.normalise)]:
        raise ValueError(f"reward '{odd[0]}' needs a reward model or normalise, which sft samples do not have")
    return dict(typed.reward), dict(typed.metrics)


SAMPLED: Final = {"reward": (terms_of, sampled_demonstrations)}


@dataclass(eq=False)
class HeldoutRewards:
    """Samples the held-out prompts and scores them by the true reward and by the proxy.

    The random numbers are the same at each step, so that two evaluations differ only by their weights.
    """

    sampler: Sampler
    policy: Any
    text: ChatText
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    _: KW_ONLY
    samples: int
    seed: int
    rewards: tuple[RewardSum, RewardSum]
    """The true reward and the proxy."""
    max_failed: float
    where: str

    def __post_init__(self) -> None:
        self._evaluations = 0
        world.from_first(lambda: [reward.load(self.prompts) for reward in self.rewards])

    def __call__(self) -> Measured:
        """Return the mean true reward and proxy reward of each prompt."""
        self._evaluations += 1
        self.sampler.sync(self.policy, f"{self.where} evaluation {self._evaluations}")
        rollouts = generate_rollouts(
            self.sampler, self.text, self.prompts, self.sampling, self.seed, samples=self.samples, name="heldout"
        )
        rest(self.sampler)
        true, proxy = self.rewards
        true_P, scored, scorable = self._scored(true, rollouts)
        proxy_P = true_P if proxy is true else self._scored(proxy, rollouts)[0]
        return Measured(true_P, proxy_P, self._metrics(scored, scorable))

    def _scored(self, reward: RewardSum, rollouts: Sequence[Rollout]) -> tuple[Floats, list[Rollout], set[int]]:
        """Return the mean reward of each prompt, the scored samples, and the indices of the samples with a score."""
        scored = scored_by_first(reward, rollouts)
        scorable = set(FailureLimit(reward, self.max_failed, self.where).check(scored))
        totals = [reward.total(one) if place in scorable else np.nan for place, one in enumerate(scored)]
        return self._per_prompt(totals), scored, scorable

    def _metrics(self, scored: Sequence[Rollout], scorable: Collection[int]) -> dict[str, float]:
        """Return the metrics of the samples with intervals over prompts."""
        metrics: dict[str, float] = {}
        for name in self.rewards[0].only_measured:
            scores = [(place, one.scores[name]) for place, one in enumerate(scored)]
            values = [
                [None if score.status in FAILED else score.value for place, score in part if place in scorable]
                for part in (scores[start : start + self.samples] for start in range(0, len(scores), self.samples))
            ]
            metrics |= part_figures(f"{METRIC}{name}", values, 0)
        return metrics

    def _per_prompt(self, values: Sequence[float]) -> Floats:
        """Return the mean reward of each prompt's scored samples; nan if there are none."""
        by_prompt = np.array(values).reshape(len(self.prompts), self.samples)
        known = np.isfinite(by_prompt).sum(axis=1)
        return np.where(known > 0, np.nansum(by_prompt, axis=1) / np.maximum(known, 1), np.nan)
