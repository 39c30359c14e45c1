"""The settings for training on the policy's samples, and the objective, batch source and update rule they define."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, Field, model_validator

from posttrain.algorithms.advantages import WinRateOptions
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import (
    POLICY_ROWS,
    PolicyConfig,
    TrpoOptions,
    foreign_refusal,
    group_refusal,
    penalty_refusal,
    replay_refusal,
    reuse_refusal,
    truncation_refusal,
)
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.evaluate.watch import WatchRule
from posttrain.models.device import Runtime
from posttrain.online.ptx import PtxSource, TextParams
from posttrain.online.reward_monitor import PATIENCE, RewardMonitor
from posttrain.online.rollout_log import RolloutLog, Sampling, Stored
from posttrain.online.rollout_params import Renewal, RolloutParams
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.online.trpo import Trpo, trpo_refusal
from posttrain.rewards.catalog import (
    USUAL,
    Metrics,
    Rewards,
    need_a_weight,
    refuse_metrics,
    term,
    with_metrics,
)
from posttrain.rewards.failures import MAX_FAILED, MaxFailed, OnFailures
from posttrain.rewards.given import with_terms
from posttrain.rewards.reward import WeightedReward
from posttrain.sampling.engines import ENGINES
from posttrain.sampling.sampler import MEMORY, Capability, KeptSampling, RoutedSampling, SamplingParams
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource, Example
from posttrain.train.loop import TrainingParams, adamw, refuse_dropout
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import Update
from posttrain.train.routing import ReplayParams, routing_refusal
from posttrain.train.run_config import Algorithms

TRUE: Any = dict.fromkeys(("correct",), 1.0)
"""The default true reward of `watch`."""
ONE_TOKEN = "a token drawn from a single token has log-prob 0, so there is nothing to learn. Use 2 or more"
OVERLONG = "overlong"
"""The reward that the setting `overlong` adds."""


class WatchParams(WatchRule):
    """Evaluation of the policy during training, on prompts from the split `heldout` of the run's table."""

    prompts: int = Field(64, ge=2, description="prompts from the start of the split heldout")
    samples: int = Field(1, ge=1, description="samples per prompt, drawn with rollout.sampling")
    reward: Annotated[Rewards, AfterValidator(refuse_metrics)] = Field(
        TRUE, description="the true reward, compared with the run's reward (the proxy)"
    )
    metrics: Metrics = Field(
        {}, description="rewards that are measured but not counted: [NAME, ...] or {NAME: {its options}}"
    )

    @property
    def terms(self) -> dict[str, WeightedReward]:
        """The true reward and the metrics."""
        return with_metrics(self.reward, self.metrics)


class OnlineConfig(TrainingParams):
    """The settings of every algorithm that trains on the policy's samples."""

    rate_kind = "online"
    example: ClassVar[str] = "grpo"
    """The algorithm in error messages' examples."""
    progress: ClassVar[tuple[str, ...]] = ("reward", "length", "kl_k3", "loss")
    """Metrics in the progress line."""
    summary: ClassVar[tuple[str, ...]] = ("reward", "length", "entropy", "kl_k3", "accuracy")
    """Metrics whose last values are written to the metrics file."""

    algorithm: str = Field(description="a preset in docs/reference/algorithms.md")
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(
        USUAL, description="weight of each reward by name, or {weight, its options}"
    )
    rollout: RolloutParams = Field(default_factory=RolloutParams)
    renew_reference: Renewal | None = Field(
        None, description="replace the reference by the current policy at intervals; null: it stays `start`"
    )
    max_failed: MaxFailed = MAX_FAILED
    on_failures: OnFailures = "end"
    patience: int | None = Field(
        PATIENCE, ge=1, description="end the run after this many consecutive rounds with nothing to learn; null: never"
    )
    canaries: int = Field(
        16,
        ge=0,
        description="prompts whose known right and wrong answers are scored as a check before the first step; 0: none",
    )

    rollouts: Stored = Field(
        "full",
        description="samples whose text and tokens are stored in rollouts/. full: all. sampled: one prompt in 20. "
        "Numbers are always stored. `replay`, offline runs and regrading need full",
    )
    rollouts_gb: float = Field(
        1.0, gt=0, description="maximum size of rollouts/ in GB; beyond it, only numbers are stored"
    )
    watch: WatchParams | None = Field(None, description="evaluation during training (docs/watching.md); null: none")

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> OnlineConfig:
        """Return the settings of an algorithm (grpo, ppo, rloo, online_dpo, ...) with the given settings replaced.

        Example: `OnlineConfig.preset("grpo", reward={"correct": 1.0}, rollout={"rounds": 20}, kl="none")`
        """
        entry = CONFIGS.entry(algorithm)
        merged = entry.row.merged({**with_terms(settings), "algorithm": algorithm})
        return cast("OnlineConfig", check(entry.model, merged, where="settings", file="arguments"))

    @model_validator(mode="after")
    def _samples_and_trains_the_same_policy(self) -> OnlineConfig:
        refuse_dropout(self)
        return self

    @model_validator(mode="after")
    def _engine_can_sample_it(self) -> OnlineConfig:
        needs: dict[str, Capability] = {**self.router.asks}
        needs |= {"samples of a mixture of two models": "mixture"} if self.mixture_share else {}
        ENGINES[self.rollout.engine].refuse(self.rollout.engine, needs)
        parallel = [key for key in self.rollout.engine_args if key.replace("-", "_") == "pipeline_parallel_size"]
        if self.router.asks and parallel:
            raise ValueError(
                f"rollout.engine_args.{parallel[0]}: vLLM does not report experts with this setting. Remove it"
            )
        return self

    @model_validator(mode="after")
    def _renews_what_it_has(self) -> OnlineConfig:
        if self.renew_reference is not None and "ref_logp" not in self.needs:
            raise ValueError("renew_reference is set, but the run has no reference. Set kl, or remove it")
        return self

    @model_validator(mode="after")
    def _watches_comparable_rewards(self) -> OnlineConfig:
        watched = {} if self.watch is None else self.watch.terms
        if odd := [name for name, term in watched.items() if term.normalise]:
            raise ValueError(f"watch.reward.{odd[0]} has normalise: steps would not be comparable. Remove it")
        return self

    def objective(self) -> Objective:
        """Return the objective of the run."""
        raise NotImplementedError

    @property
    def logp_temperature(self) -> float:
        """The sampling temperature."""
        return self.rollout.sampling.temperature

    @property
    def needs(self) -> frozenset[str]:
        """The columns that the objective reads, and the models that sampling needs."""
        return self.objective().needs | ({"ref_logp"} if self.mixture_share else set())

    @property
    def reference_moves(self) -> bool:
        """True if the reference is renewed."""
        return self.renew_reference is not None

    @property
    def tries(self) -> int:
        """Maximum number of draws of a group in a round.

        Above 1, groups of equal rewards are drawn again (dynamic sampling).
        """
        return 1

    @property
    def mixture_share(self) -> float:
        """The reference's weight in the mixture that is sampled; 0: only the policy."""
        return 0.0

    @property
    def has_opponents(self) -> bool:
        """True if half of each group comes from the mixture, as opponents of the other half."""
        return False

    @property
    def terms(self) -> dict[str, WeightedReward]:
        """The rewards of a sample, including rewards that the algorithm adds."""
        return self.reward

    @property
    def learned_from(self) -> dict[str, WeightedReward]:
        """Rewards that must be able to judge a prompt. Other prompts are not sampled."""
        return self.terms

    def source(self, samples: BatchSource, text: ChatText) -> BatchSource:  # noqa: ARG002
        """Return the batch source: samples, with rows of a table if the algorithm uses them."""
        return samples

    def mixed(self, samples: BatchSource, given: Sequence[Example]) -> BatchSource:  # noqa: ARG002
        """Return the policy's samples together with other rows: demonstrations for a student, or text (ptx)."""
        return samples

    @property
    def most_rollouts(self) -> int:
        """Maximum number of rollouts that the run can sample."""
        rollout = self.rollout
        return rollout.rounds * rollout.prompts * rollout.group_size * self.tries

    def rollout_log(self, name: str, text: ChatText, longest_prompt: int) -> RolloutLog:
        """Return a log that stores the run's samples."""
        rollout = self.rollout
        settings = rollout.sampling.model_dump(mode="json", exclude=MEMORY)
        settings |= {"mixture": self.mixture_share} if self.mixture_share else {}
        sampling = Sampling(
            run=name.replace("@", "/"),
            seed=self.seed,
            settings=json.dumps(settings, sort_keys=True),
            vocabulary=text.vocabulary,
            group_size=rollout.group_size,
            most=self.most_rollouts,
            longest=longest_prompt + rollout.sampling.max_tokens,
            keeps=isinstance(self.sampling, KeptSampling),
        )
        return RolloutLog(sampling, self.rollouts, self.rollouts_gb * 1e9)

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling settings; with kept tokens or experts if training needs them."""
        given = self.rollout.sampling
        keeps_tokens = given.truncates and "old_logp" in self.needs
        kind = KeptSampling if keeps_tokens else RoutedSampling if self.router.asks else SamplingParams
        return kind(**given.model_dump())

    @property
    def compares_groups(self) -> bool:
        """True if a group of equal rewards has no gradient."""
        return False

    def monitor(self, section: str) -> RewardMonitor:
        """Return a monitor that warns if the run cannot learn."""
        return RewardMonitor(section, self.reward, compares=self.compares_groups, patience=self.patience)

    def update_rule(self, models: ModelSet, steps: int) -> Update:
        """Return the rule that turns gradients into weight updates."""
        return adamw(models.trained, self, steps, models.policy)

    def step_tokens(self, longest_prompt: int) -> int:
        """Return the maximum number of tokens of an optimizer step: all rows have the longest prompt and completion."""
        groups = -(-self.rollout.prompts // self.rollout.minibatches) + self.rollout.replay.groups
        return groups * self.rollout.group_size * self.longest_row(longest_prompt)

    def longest_row(self, longest_prompt: int) -> int:
        """Return the maximum number of tokens of a row."""
        return longest_prompt + self.rollout.sampling.max_tokens


class OnlinePolicyConfig(OnlineConfig, PolicyConfig):
    """Settings of a policy objective on the policy's samples."""

    text: TextParams = Field(default_factory=TextParams)
    router: ReplayParams = Field(default_factory=ReplayParams)

    @model_validator(mode="after")
    def _fits_the_rollout(self) -> OnlinePolicyConfig:
        size, epochs, replay = self.rollout.group_size, self.rollout.epochs, self.rollout.replay.groups
        reasons = {
            f"rollout.group_size = {size}": group_refusal(self, size),
            f"rollout.epochs = {epochs}": reuse_refusal(self, epochs),
            f"rollout.replay.groups = {replay}": replay_refusal(self, replay),
            "rollout.minibatches": penalty_refusal(self, self.rollout.steps_a_round),
            "rollout.sampling": truncation_refusal(self) if self.rollout.sampling.truncates else None,
            "rollout.sampling.top_k = 1": ONE_TOKEN if self.rollout.sampling.top_k == 1 else None,
            "correction = none": foreign_refusal(self, foreign=self.rollout.foreign),
            "reward": reward_refusal(self),
        }
        refused = [f"{where}: {reason}" for where, reason in reasons.items() if reason]
        if refused and not self.allow_unsupported:
            raise ValueError(f"{'; '.join(refused)}, or allow_unsupported: true")
        if self.router.replays and (reason := routing_refusal(self, self.needs)):
            raise ValueError(f"router.replay = {str(self.router.replay).lower()}: {reason}. Change one of them")
        if isinstance(self.update, TrpoOptions) and (reason := trpo_refusal(self)):
            raise ValueError(reason)
        if self.overlong is not None and OVERLONG in self.reward:
            raise ValueError(
                "overlong samples are penalised twice: by the setting and by the reward of that name. Remove one"
            )
        if self.text != TextParams() and not self.ptx:
            raise ValueError("text is only used if ptx is above 0, but ptx is 0. Remove text, or set ptx")
        if self.ptx and self.rollout.sampling.temperature != 1:
            raise ValueError("ptx computes the likelihood of text at temperature 1. Set rollout.sampling.temperature 1")
        return self

    def mixed(self, samples: BatchSource, given: Sequence[Example]) -> BatchSource:
        """Return the policy's samples, with windows of text for ptx."""
        return PtxSource(samples, given, self.text.rows, self.seed) if self.ptx and len(given) else samples

    @property
    def has_critic(self) -> bool:
        """True if the advantage needs values."""
        return self.advantage_entry.valued

    def objective(self) -> Objective:
        """Return the preset's surrogate objective. The fixed-length aggregation divides by the longest completion."""
        return PolicyObjective(self, self.rollout.sampling.max_tokens)

    @property
    def tries(self) -> int:
        """The first draw plus the draws of dynamic sampling."""
        return 1 + self.resample

    @property
    def mixture_share(self) -> float:
        """The reference's weight in the mixture that opponents come from."""
        return self.advantage.mixture if isinstance(self.advantage, WinRateOptions) else 0.0

    @property
    def has_opponents(self) -> bool:
        """True if the advantage is a win rate."""
        return isinstance(self.advantage, WinRateOptions)

    @property
    def terms(self) -> dict[str, WeightedReward]:
        """The rewards of a sample. The setting `overlong` adds the reward `overlong`."""
        if self.overlong is None:
            return self.reward
        return {**self.reward, OVERLONG: term(OVERLONG, {"fraction": self.overlong})}

    @property
    def compares_groups(self) -> bool:
        """True if the advantage is relative to the group."""
        return self.advantage_entry.grouped

    def runtime(self) -> Runtime:
        """Return the runtime. TRPO computes in float32 on every device."""
        exact = isinstance(self.update, TrpoOptions)
        return Runtime(self.device.model_copy(update={"precision": "fp32"}) if exact else self.device)

    def update_rule(self, models: ModelSet, steps: int) -> Update:
        """Return AdamW; or TRPO, with AdamW for the critic."""
        if not isinstance(self.update, TrpoOptions):
            return super().update_rule(models, steps)
        critic = None if models.critic is None else adamw({"critic": models.critic}, self, steps, models.policy)
        return Trpo(models.policy, self.update, critic)

    @property
    def divides_models(self) -> bool:
        """True if models may be sharded. TRPO differentiates twice, which FSDP does not support."""
        return not isinstance(self.update, TrpoOptions)

    def step_tokens(self, longest_prompt: int) -> int:
        """Return the maximum number of tokens of samples plus pretraining text."""
        text = self.text.rows * (self.text.window + 1) if self.ptx else 0
        return super().step_tokens(longest_prompt) + text


CONFIGS = Algorithms((POLICY_ROWS, lambda _: OnlinePolicyConfig), (SAMPLED_ROWS, lambda row: row.run))
"""Algorithm -> its settings."""


def reward_refusal(run: OnlinePolicyConfig) -> str | None:
    """Return the reason why the rewards do not fit the way the run compares them; None if they fit."""
    gates = [name for name, term in run.terms.items() if term.gate]
    if gates and run.advantage_entry.by_part:
        compared = f"advantage '{run.advantage.type}' compares each part separately, without gates"
        return f"'{gates[0]}' is a gate, but {compared}. Give it a weight"
    normalised = [name for name, term in run.terms.items() if term.normalise]
    if normalised and run.resample:
        drawn = "resample draws its groups in several parts"
        return f"'{normalised[0]}' is normalised over a round, but {drawn}. Set resample: 0, or normalise: false"
    return None
