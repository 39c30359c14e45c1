"""The knobs of policy objectives, which of them are read when, and which combinations mean nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.algorithms.row import Readers, ignored
from posttrain.params import Params

GROUPED = frozenset({"leave_one_out", "group_centred", "group_zscore", "win_rate"})
VALUED = frozenset({"gae", "outcome_value"})
PER_TOKEN = frozenset({"gae", "outcome_value", "return_to_go"})
CLIPPED = frozenset({"pessimistic", "weight"})


class ClipKnobs(Params):
    """How far the ratio may move before the surrogate stops following it."""

    low: float | None = Field(0.2, gt=0, le=1, description="lower edge 1 - low; null leaves it open (CISPO)")
    high: float = Field(0.2, gt=-1, description="upper edge 1 + high")


class KlKnobs(Params):
    """Where the divergence from the reference is charged, how it is estimated, and at what price."""

    place: Literal["none", "loss", "reward_token", "reward_sequence"] = Field("none", description="where it is charged")
    estimator: Literal["k1", "k2", "k3"] = Field("k3", description="k1, k2 or k3 (docs/algorithms.md)")
    beta: float = Field(0.0, ge=0, description="price of one nat")
    reduce: Literal["sum", "mean"] = Field("sum", description="over a sequence's tokens, for reward_sequence")
    target: float | None = Field(None, gt=0, description="adaptive: the KL per sequence to hold; null keeps beta fixed")
    horizon: int = Field(10_000, ge=1, description="adaptive: samples over which beta may change by its own size")


class PenaltyKnobs(Params):
    """The price of moving away from the policy that sampled (PPO's other form)."""

    kind: Literal["none", "exact", "sampled"] = Field(
        "none", description="KL(old || new): exact over the vocabulary, or from the sampled tokens"
    )
    beta: float = Field(1.0, gt=0, description="price of one nat at the start")
    target: float | None = Field(
        0.01, gt=0, description="halve below target / 1.5, double above 1.5 target; null keeps beta fixed"
    )


class TrpoKnobs(Params):
    """How the trust region's step is found."""

    delta: float = Field(0.01, gt=0, description="bound on the mean KL(old || new) of a step")
    damping: float = Field(0.1, ge=0, description="multiple of the identity added to the Fisher matrix")
    iterations: int = Field(10, ge=1, description="conjugate gradient iterations")
    backtracks: int = Field(10, ge=0, description="halvings of the step before it is given up")


class PolicyKnobs(Params):
    """Everything that tells one policy objective from another."""

    advantage: Literal[
        "batch_centred",
        "moving_average",
        "return_to_go",
        "leave_one_out",
        "group_centred",
        "group_zscore",
        "win_rate",
        "gae",
        "outcome_value",
    ] = Field("group_zscore", description="how a sample's reward is compared")
    ratio: Literal["token", "sequence"] = Field("token", description="over what the importance ratio is taken")
    surrogate: Literal["score", "unclipped", "pessimistic", "weight"] = Field(
        "pessimistic", description="score: A logp; unclipped: r A; pessimistic: PPO's min; weight: CISPO's"
    )
    clip: ClipKnobs = Field(default_factory=ClipKnobs)
    aggregation: Literal["sequence_sum", "sequence_mean", "token_mean", "fixed_length"] = Field(
        "sequence_mean", description="how token losses become one number"
    )
    kl: KlKnobs = Field(default_factory=KlKnobs)
    penalty: PenaltyKnobs = Field(default_factory=PenaltyKnobs)
    correction: float | None = Field(
        None, gt=0, description="cap of the importance weight of a sampler whose numbers are not the trainer's"
    )
    entropy: float = Field(0.0, ge=0, description="entropy bonus")
    whiten: bool = Field(False, description="whiten advantages over all tokens of the step")
    truncated: Literal["keep", "mask"] = Field(
        "keep", description="mask: truncated rows give no loss, stay in baselines"
    )
    overlong: int | None = Field(None, ge=1, description="soft overlong punishment over the last so many tokens")
    resample: int = Field(0, ge=0, description="dynamic sampling: extra rounds to replace groups whose rewards agree")
    baseline_decay: float = Field(
        0.9, ge=0, lt=1, description="share of the moving average that a batch leaves in place"
    )
    mixture: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="win_rate: the reference's share in the geometric mixture that opponents come from",
    )
    win_scale: float = Field(0.25, gt=0, description="win_rate: P(i beats j) = sigmoid((R_i - R_j) / win_scale)")
    gamma: float = Field(1.0, gt=0, le=1, description="discount (gae, return_to_go)")
    lam: float = Field(0.95, ge=0, le=1, description="lambda (gae)")
    value_coef: float = Field(0.5, gt=0, description="weight of the critic's loss")
    value_clip: float | None = Field(0.2, gt=0, description="clip of the critic's loss; null for none")
    ptx: float = Field(
        0.0, ge=0, description="PPO-ptx: weight of the likelihood of pretraining rows (InstructGPT: 27.8)"
    )
    update: Literal["adamw", "trpo"] = Field("adamw", description="the rule that turns gradients into a step")
    trpo: TrpoKnobs = Field(default_factory=TrpoKnobs)
    experimental: bool = Field(False, description="allow combinations that the definitions refuse")

    @model_validator(mode="after")
    def _meaningful(self) -> PolicyKnobs:
        wrong = ignored(self, READERS)
        refused = refusal(self)
        if refused and not self.experimental:
            wrong.append(f"{refused}, or experimental: true")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


_CHARGED = frozenset({"loss", "reward_token", "reward_sequence"})

READERS: Readers = {
    "ratio": ("surrogate", frozenset({"unclipped", "pessimistic", "weight"})),
    "clip": ("surrogate", CLIPPED),
    "kl.estimator": ("kl.place", _CHARGED),
    "kl.beta": ("kl.place", _CHARGED),
    "kl.target": ("kl.place", _CHARGED),
    "kl.reduce": ("kl.place", frozenset({"reward_sequence"})),
    "kl.horizon": ("kl.target", None),
    "penalty.beta": ("penalty.kind", frozenset({"exact", "sampled"})),
    "penalty.target": ("penalty.kind", frozenset({"exact", "sampled"})),
    "baseline_decay": ("advantage", frozenset({"moving_average"})),
    "mixture": ("advantage", frozenset({"win_rate"})),
    "win_scale": ("advantage", frozenset({"win_rate"})),
    "gamma": ("advantage", frozenset({"gae", "return_to_go"})),
    "lam": ("advantage", frozenset({"gae"})),
    "value_coef": ("advantage", VALUED),
    "value_clip": ("advantage", VALUED),
    "trpo": ("update", frozenset({"trpo"})),
}
"""Which knob is read when; setting one that nothing reads is an error, never ignored."""


def refusal(knobs: PolicyKnobs) -> str | None:
    """Why a combination that is typed right means nothing, with the fix; None when it means something."""
    for judge in (_ratio_refusal, _clip_refusal, _kl_refusal, _update_refusal):
        reason = judge(knobs)
        if reason:
            return reason
    return None


def group_refusal(knobs: PolicyKnobs, group_size: int) -> str | None:
    """Why an advantage cannot be had from groups of this size; None when it can."""
    if knobs.advantage in GROUPED and group_size < 2:
        return (
            f"advantage '{knobs.advantage}' compares siblings, so in a group of {group_size} every advantage would be "
            "0. Use a group size of 2 or more, or algorithm 'reinforce'"
        )
    return None


def reuse_refusal(knobs: PolicyKnobs, updates: int) -> str | None:
    """Why samples cannot serve so many updates; None when they can."""
    if knobs.surrogate == "score" and updates > 1:
        return (
            f"surrogate 'score' has no ratio, so {updates} updates on the same samples follow the gradient of a policy "
            "that is gone. Use 1 update per batch, or surrogate pessimistic, weight or unclipped"
        )
    return None


def replay_refusal(knobs: PolicyKnobs, groups: int) -> str | None:
    """Why samples of earlier rounds cannot be learned from; None when they can."""
    if not groups:
        return None
    if knobs.surrogate == "score":
        return (
            "surrogate 'score' has no ratio to correct for the policy that sampled. Use surrogate pessimistic, weight "
            "or unclipped, or replay.groups 0"
        )
    if knobs.penalty.kind != "none" or knobs.update == "trpo":
        return (
            "KL(old || new) is measured against one sampling policy, and earlier rounds have others. Use "
            "replay.groups 0"
        )
    return None


def truncation_refusal(top_p: float, top_k: int | None) -> str | None:
    """Why samples of the likeliest tokens alone cannot be learned from; None when all tokens are drawn from."""
    if top_p == 1 and top_k is None:
        return None
    told = f"top_p = {top_p:g}" if top_p < 1 else f"top_k = {top_k}"
    return (
        f"{told} draws from another distribution than the policy's, whose log-probs the objective learns by, so ratios "
        "and KL would be of a policy that never sampled. Use top_p 1 and top_k null"
    )


def _ratio_refusal(knobs: PolicyKnobs) -> str | None:
    if knobs.ratio != "sequence":
        return None
    if knobs.aggregation != "sequence_mean":
        return (
            f"ratio 'sequence' is one number per sequence, which aggregation '{knobs.aggregation}' would count once "
            "per token, so long answers would weigh more. Use aggregation sequence_mean"
        )
    if knobs.surrogate == "weight":
        return "surrogate 'weight' weighs single tokens, and a sequence ratio has none. Use ratio token"
    if knobs.advantage in PER_TOKEN:
        return f"advantage '{knobs.advantage}' differs from token to token, a sequence ratio does not. Use ratio token"
    return None


def _clip_refusal(knobs: PolicyKnobs) -> str | None:
    if knobs.surrogate not in CLIPPED:
        return None
    if knobs.surrogate == "pessimistic" and knobs.clip.low is None:
        return (
            "surrogate 'pessimistic' needs both edges, or a ratio may fall freely where A < 0 was learned. Set clip.low"
        )
    if knobs.clip.high <= 0:
        return (
            f"clip.high = {knobs.clip.high:g} puts the cap 1 + high at {1 + knobs.clip.high:g}, so samples of the "
            "policy itself (ratio 1) would be cut. Use clip.high above 0: it is counted from 1"
        )
    return None


def _kl_refusal(knobs: PolicyKnobs) -> str | None:
    kl = knobs.kl
    if kl.place == "loss" and kl.estimator == "k1":
        return (
            "kl.estimator k1 in the loss has a gradient of expectation 0, so it would charge nothing. "
            "Use k3 or k2 in the loss, or kl.place reward_token or reward_sequence"
        )
    if kl.place == "reward_sequence" and knobs.advantage in ("gae", "return_to_go"):
        return f"advantage '{knobs.advantage}' takes its rewards per token. Use kl.place reward_token"
    if kl.place == "reward_token" and knobs.advantage not in ("gae", "return_to_go"):
        return (
            f"advantage '{knobs.advantage}' compares one number per sequence, so a charge per token has no place in "
            "it. Use kl.place reward_sequence"
        )
    if kl.target is not None and kl.beta == 0:
        return "kl.target multiplies kl.beta, so from 0 it never moves. Use a kl.beta above 0, or kl.target null"
    return None


def _update_refusal(knobs: PolicyKnobs) -> str | None:
    if knobs.update == "trpo" and knobs.surrogate != "unclipped":
        return "trpo bounds the step by its KL, not by a clip. Use surrogate unclipped"
    if knobs.update == "trpo" and knobs.penalty.kind != "none":
        return "trpo holds KL(old || new) under a bound, so a price on it comes on top. Use penalty.kind none"
    if knobs.resample and knobs.advantage not in GROUPED:
        return (
            f"resample replaces groups whose rewards agree, and advantage '{knobs.advantage}' compares no groups. "
            f"Use resample 0, or an advantage out of {', '.join(sorted(GROUPED))}"
        )
    return None
