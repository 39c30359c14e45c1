"""Sample from a policy and score the samples. Stages and calls both use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from posttrain.measure.progress import Progress
from posttrain.rewards.catalog import USUAL, Rewards, need_a_weight
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.scorable import check_scorable
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, engine_of, gap_of
from posttrain.sampling.sampler import check_capacity, generate_rollouts
from posttrain.sampling.scored_config import ScoredSampling
from posttrain.sampling.step_labels import LabelledStep, StepLabels, labelled_steps


class SampleConfig(ScoredSampling):
    """Settings for sampling a policy to make rows from its samples.

    Example: `SampleConfig(reward={"correct": 1.0}, samples=4, sampling={"max_tokens": 200})`
    """

    samples: int = Field(6, ge=2, description="samples per prompt")
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(
        USUAL, description="rewards that score the samples"
    )
    pass_score: float = Field(1.0, description="minimum reward to pass")
    steps: StepLabels | None = Field(
        None,
        description="the table feedback contains steps of samples, labelled by continuations, instead of whole samples",
    )

    @property
    def longest(self) -> int:
        """The longest completion: a sample, and with `steps` a continuation after its last step."""
        return self.sampling.max_tokens * (1 if self.steps is None else 2)


@dataclass(frozen=True)
class ScoredSamples:
    """The samples of a policy. Prompts with an unscored sample are dropped."""

    prompts: list[Prompt]
    rollouts: list[Rollout]
    """The scored samples, `samples` of each prompt. Samples of one prompt are adjacent."""
    rewards: list[float]
    """The weighted sum of the scores of each sample."""
    steps: list[LabelledStep]
    """The labelled steps of samples, if the settings have `steps`."""
    metrics: dict[str, float]
    """The difference between the engine's and the model's own log-probs, if there is one."""


def scored_samples(
    config: SampleConfig, policy: SampledModel, prompts: Sequence[Prompt], *, reward_model: Path | None, name: str,
    where: str, opens: OpenSampler | None = None,
) -> ScoredSamples:  # fmt: skip
    """Sample each prompt and score the samples. `opens`: opens the sampler; None: the engine in the settings."""
    count, sampling = len(prompts) * config.samples, config.sampling
    longest = sampling.model_copy(update={"max_tokens": config.longest})
    check_capacity(policy.text.context, [prompt.ids for prompt in prompts], count, longest, where)
    scorer = config.scorer(policy.runtime, policy.text, reward_model, where)
    if reward_model is None:  # one takes memory, which the sampler needs first
        scorer.load(prompts)
    progress = Progress(name, count, "completion")
    with (opens or engine_of(config, where))(policy, longest, prompts) as sampler:
        drawn = generate_rollouts(
            sampler, policy.text, prompts, sampling, config.seed, samples=config.samples, advance=progress.advance
        )
        progress.close()
        gap = gap_of(sampler, policy, drawn, sampling.temperature, where)
        failures = FailureLimit(scorer, config.max_failed, where)
        complete, rollouts = failures.complete(prompts, scorer.score(drawn))
        check_scorable(config.reward, rollouts, where)
        steps = [] if config.steps is None else labelled_steps(
            sampler, policy.text, rollouts, scorer, failures, config.steps, sampling, config.seed, config.pass_score
        )  # fmt: skip
    return ScoredSamples(complete, rollouts, scorer.totals(rollouts), steps, gap)
