"""The settings of policy objectives, and the combinations of them that are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from posttrain.algorithms.advantages import ADVANTAGES, Advantage
from posttrain.algorithms.corrections import CORRECTION
from posttrain.algorithms.objective import AlgorithmRow, Moving, typed
from posttrain.algorithms.policy.grpo import ZSCORE
from posttrain.algorithms.policy.ppo import CLIP
from posttrain.algorithms.surrogate import SURROGATES, Surrogate
from posttrain.settings.choices import OneOf, Option, Options
from posttrain.settings.listing import Listing
from posttrain.settings.params import Params

HORIZON = 10_000


class KlOptions(Moving):
    """A penalty on the KL to the reference."""

    moves: ClassVar[Mapping[str, str]] = {"beta": "end"}
    beta: float = Field(ge=0, description="the coefficient of the KL, e.g. 0.05")
    estimator: Literal["k1", "k2", "k3"] = Field("k1", description="estimator of the KL (docs/algorithms.md)")
    target: float | None = Field(
        None, gt=0, description="adaptive beta: the target KL per sequence; null: beta is fixed"
    )
    horizon: int = Field(
        HORIZON, ge=1, description="with target: a larger horizon (number of samples) changes beta more slowly"
    )
    end: float | None = Field(None, ge=0, description="beta changes linearly to this value; null: beta is fixed")

    @model_validator(mode="after")
    def _follows_a_target(self) -> KlOptions:
        if self.target is None and self.horizon != HORIZON:
            raise ValueError("horizon only works with a target. Remove horizon, or set target")
        if self.target is not None and self.end is not None:
            raise ValueError("`target` and `end` both change beta. Remove one of them")
        if self.target is not None and self.beta == 0:
            raise ValueError("target multiplies beta, so a beta of 0 would stay 0. Use a beta above 0, or target null")
        return self


class LossKlOptions(KlOptions):
    """A KL penalty in the loss."""

    estimator: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the KL (docs/algorithms.md)")


class SequenceKlOptions(KlOptions):
    """A KL penalty in the outcome reward."""

    reduce: Literal["sum", "mean"] = Field("sum", description="combine the KL over a sequence's tokens by sum or mean")


class PenaltyOptions(Options):
    """A penalty on the KL to the sampling policy (PPO's other form)."""

    beta: float = Field(1.0, gt=0, description="initial coefficient")
    target: float | None = Field(
        0.01,
        gt=0,
        description="halve beta if the KL before a round's last step is below target / 1.5, double it above 1.5 "
        "target; null: beta is fixed",
    )


class TrpoOptions(Options):
    """The trust region, and the computation of its step."""

    type: str = "trpo"
    delta: float = Field(0.01, gt=0, description="upper bound of a step's mean KL(old || new)")
    damping: float = Field(0.1, ge=0, description="multiple of the identity that is added to the Fisher matrix")
    iterations: int = Field(10, ge=1, description="conjugate gradient iterations")
    backtracks: int = Field(10, ge=0, description="times that a step is halved before it is skipped")


KL: OneOf[Option] = OneOf(
    {
        "none": Option(Options, "no KL penalty"),
        "loss": Option(LossKlOptions, "beta KL(policy || reference) per token in the loss"),
        "reward_token": Option(KlOptions, "each token's reward minus beta times its KL, for gae and return_to_go"),
        "reward_sequence": Option(SequenceKlOptions, "the outcome reward minus beta times the sequence's KL"),
    },
    "none",
)
PENALTY: OneOf[Option] = OneOf(
    {
        "none": Option(Options, "no penalty"),
        "exact": Option(PenaltyOptions, "beta KL(old || new), over the vocabulary"),
        "sampled": Option(PenaltyOptions, "beta KL(old || new), from the sampled tokens"),
    },
    "none",
)
UPDATE: OneOf[Option] = OneOf(
    {
        "adamw": Option(Options, "AdamW, with the settings of optimizer"),
        "trpo": Option(TrpoOptions, "natural gradient steps with a bound on KL(old || new)"),
    },
    "adamw",
)
SURROGATE: OneOf[Surrogate] = OneOf(SURROGATES, CLIP, own=(Surrogate,))
ADVANTAGE: OneOf[Advantage] = OneOf(ADVANTAGES, ZSCORE)


class PolicyConfig(Params):
    """The settings of a policy objective."""

    advantage: Annotated[Options, ADVANTAGE] = Field(ADVANTAGE.chosen, description="how rewards become advantages")
    surrogate: Annotated[Options, SURROGATE] = Field(
        SURROGATE.chosen, description="the term per token that training maximises"
    )
    aggregation: Literal["sequence_sum", "sequence_mean", "token_mean", "fixed_length"] = Field(
        "sequence_mean", description="how token losses are averaged"
    )
    kl: Annotated[Options, KL] = Field(KL.chosen, description="where a penalty on the KL to the reference is applied")
    penalty: Annotated[Options, PENALTY] = Field(PENALTY.chosen, description="penalty on the KL to the sampling policy")
    correction: Annotated[Options, CORRECTION] = Field(
        CORRECTION.chosen, description="importance weights if the sampler's log-probs differ from the trainer's"
    )
    entropy: float = Field(0.0, ge=0, description="coefficient of the entropy bonus")
    whiten: bool = Field(False, description="whiten advantages over all tokens of a step")
    truncated: Literal["keep", "mask"] = Field(
        "keep", description="mask: truncated rows have no loss, but count in baselines"
    )
    overlong: float | None = Field(
        None, gt=0, description="soft penalty in this last fraction of sampling.max_tokens, e.g. 0.2"
    )
    resample: int = Field(
        0, ge=0, description="dynamic sampling: extra draws that replace groups without reward variance"
    )
    ptx: float = Field(
        0.0, ge=0, description="PPO-ptx: weight of the log-likelihood of pretraining rows (InstructGPT: 27.8)"
    )
    update: Annotated[Options, UPDATE] = Field(
        UPDATE.chosen, description="the rule that turns gradients into weight updates"
    )
    allow_unsupported: bool = Field(False, description="allow combinations that are rejected by default")

    @field_validator("correction", mode="before")
    @classmethod
    def _is_a_choice(cls, correction: Any) -> Any:
        if isinstance(correction, int | float):
            raise ValueError(  # noqa: TRY004
                f"a plain number is no longer accepted; it was the upper bound of the weights. Write "
                f"{{type: truncate, high: {correction:g}}} now"
            )
        return correction

    @field_validator("overlong")
    @classmethod
    def _is_a_fraction(cls, overlong: float | None) -> float | None:
        if overlong is not None and overlong >= 1:
            raise ValueError(
                f"{overlong:g} is a number of tokens, but this setting is now a fraction of "
                f"rollout.sampling.max_tokens. Write {overlong:g} / max_tokens, or 0.2 as in DAPO"
            )
        return overlong

    @model_validator(mode="after")
    def _meaningful(self) -> PolicyConfig:
        refused = refusal(self)
        if refused and not self.allow_unsupported:
            raise ValueError(f"{refused}, or allow_unsupported: true")
        return self

    @property
    def advantage_entry(self) -> Advantage:
        """The entry of ADVANTAGES."""
        return ADVANTAGE.entry(self.advantage.type)

    @property
    def surrogate_entry(self) -> Surrogate:
        """The entry of SURROGATES, or the user's own surrogate."""
        return SURROGATE.entry(self.surrogate.type)


POLICY_ROWS: Listing[AlgorithmRow] = Listing("posttrain.algorithms.policy", "ROWS", typed(PolicyConfig))


def refusal(config: PolicyConfig) -> str | None:
    """Return the reason why a combination of valid settings is rejected, with the fix; None if it is allowed."""
    for check in (_sequence_refusal, _correction_refusal, _kl_refusal, _update_refusal):
        reason = check(config)
        if reason:
            return reason
    return None


def group_refusal(config: PolicyConfig, group_size: int) -> str | None:
    """Return the reason why the advantage cannot be computed from groups of this size; None if it can."""
    smallest = config.advantage_entry.smallest_group(config.advantage)
    if config.advantage_entry.grouped and group_size < smallest:
        return (
            f"advantage '{config.advantage.type}' compares the samples of a group, so in a group of {group_size} "
            f"every advantage would be 0. Use a group size of {smallest} or more, or algorithm 'reinforce'"
        )
    return None


def reuse_refusal(config: PolicyConfig, updates: int) -> str | None:
    """Return the reason why samples cannot be used for this many updates; None if they can."""
    if not config.surrogate_entry.has_ratio and updates > 1:
        return (
            f"surrogate '{config.surrogate.type}' has no ratio, so {updates} updates on the same samples would "
            "follow the gradient of an old policy. Use 1 update per batch, or a surrogate with a ratio, e.g. ppo_clip"
        )
    return None


def replay_refusal(config: PolicyConfig, groups: int) -> str | None:
    """Return the reason why samples of earlier rounds cannot be used; None if they can."""
    if not groups:
        return None
    if not config.surrogate_entry.has_ratio:
        return (
            f"surrogate '{config.surrogate.type}' has no ratio to correct for the sampling policy. "
            "Use a surrogate with a ratio, e.g. ppo_clip, or replay.groups 0"
        )
    if config.penalty.type != "none" or config.update.type == "trpo":
        return (
            "KL(old || new) needs a single sampling policy, but earlier rounds used other policies. Use replay.groups 0"
        )
    return None


def penalty_refusal(config: PolicyConfig, steps: int) -> str | None:
    """Return the reason why the penalty cannot reach its target in this many steps per round; None if it can."""
    if steps > 1 or not isinstance(config.penalty, PenaltyOptions) or config.penalty.target is None:
        return None
    return (
        "KL(old || new) is 0 before the only step of a round, so nothing follows penalty.target. Use more minibatches "
        "or epochs, or penalty.target null"
    )


def truncation_refusal(config: PolicyConfig) -> str | None:
    """Return the reason why samples from only the likeliest tokens cannot be used; None if they can."""
    if config.penalty.type != "exact" and config.update.type != "trpo":
        return None
    return (
        "top_p and top_k exclude tokens, but the exact KL(old || new) covers all tokens. Use penalty sampled, "
        "update adamw, or top_p 1 and top_k null"
    )


def foreign_refusal(config: PolicyConfig, *, foreign: bool) -> str | None:
    """Return the reason why samples from another engine or older weights need a correction; None if one is set."""
    if not foreign or config.correction.type != "none" or config.surrogate_entry.of_sampler:
        return None
    return (
        "with rollout.engine vllm or rollout.ahead 1, the sampler's log-probs differ from the trainer's, and the loss "
        "would treat the difference as progress. Set correction: {type: truncate}"
    )


def _sequence_refusal(config: PolicyConfig) -> str | None:
    if not config.surrogate_entry.per_sequence:
        return None
    name, wanted = config.surrogate.type, config.surrogate_entry.aggregation
    if config.aggregation != wanted:
        return (
            f"surrogate '{name}' is one number per sequence, but with aggregation '{config.aggregation}' its weight "
            f"would depend on the answer's length. Use aggregation {wanted}"
        )
    if config.advantage_entry.per_token:
        return (
            f"advantage '{config.advantage.type}' differs from token to token, but surrogate '{name}' is one number "
            "per sequence. Use surrogate ppo_clip"
        )
    return None


def _correction_refusal(config: PolicyConfig) -> str | None:
    if config.surrogate_entry.of_sampler and config.correction.type != "none":
        return (
            f"surrogate '{config.surrogate.type}' already bounds the distance to the sampler, so a correction would "
            "count the difference twice. Use correction none"
        )
    return None


def _kl_refusal(config: PolicyConfig) -> str | None:
    kl, advantage = config.kl, config.advantage.type
    if isinstance(kl, LossKlOptions) and kl.estimator == "k1":
        return (
            "kl.estimator k1 in the loss has a gradient of expectation 0, so it would have no effect. "
            "Use k3 or k2 in the loss, or kl.type reward_token or reward_sequence"
        )
    if kl.type.startswith("reward") and config.advantage_entry.by_part:
        return (
            f"advantage '{advantage}' compares each reward separately, and a KL penalty is not a reward. Use "
            "kl.type loss"
        )
    if kl.type.startswith("reward") and config.advantage_entry.nonnegative:
        return f"advantage '{advantage}' needs rewards >= 0, which a KL penalty could make negative. Use kl.type loss"
    if kl.type == "reward_sequence" and config.advantage_entry.token_rewards:
        return f"advantage '{advantage}' needs rewards per token. Use kl.type reward_token"
    if kl.type == "reward_token" and not config.advantage_entry.token_rewards:
        return (
            f"advantage '{advantage}' compares one number per sequence, not rewards per token. "
            "Use kl.type reward_sequence"
        )
    return None


def _update_refusal(config: PolicyConfig) -> str | None:
    if config.update.type == "trpo" and config.surrogate.type != "importance":
        return "trpo bounds the step by its KL, not by a clip. Use surrogate importance"
    if config.update.type == "trpo" and config.penalty.type != "none":
        return "trpo bounds KL(old || new), so a penalty on it is not needed. Use penalty none"
    if config.overlong is not None and config.advantage_entry.nonnegative:
        return (
            f"advantage '{config.advantage.type}' needs rewards >= 0, but overlong gives rewards below 0. Use overlong "
            "null"
        )
    if config.resample and not config.advantage_entry.grouped:
        return (
            f"resample replaces groups of equal rewards, but advantage '{config.advantage.type}' does not compare "
            "groups. "
            "Use resample 0, or an advantage over groups, e.g. group_zscore"
        )
    return None
