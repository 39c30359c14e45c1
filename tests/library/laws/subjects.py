"""What the laws are held against: every row, variants of some, and the objectives that are not rows."""

from __future__ import annotations

from collections.abc import Callable

from posttrain.algorithms.distillation import DistillConfig, DistillObjective, TaughtConfig, TaughtObjective
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.laws.cases import LONGEST

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "reinforce, moving average": ("reinforce", {"advantage": "moving_average"}),
    "ppo, outcome value": (
        "ppo",
        {"advantage": "outcome_value", "kl": {"type": "reward_sequence", "beta": 0.05, "reduce": "mean"}},
    ),
    "ppo, adaptive KL": ("ppo", {"kl": {"target": 3.0, "horizon": 50}}),
    "grpo, beta to an end": ("grpo", {"kl": {"end": 0.0, "steps": 3}}),
    "clip_cov, edges to their ends": (
        "clip_cov",
        {"surrogate": {"share": 0.3, "cov_low": 0.1, "low_end": 0.02, "high_end": 0.4, "steps": 3}},
    ),
    "ppo, ptx": ("ppo", {"ptx": 27.8}),
    "ppo, entropy, no value clip": ("ppo", {"entropy": 0.01, "advantage": {"value_clip": None, "gamma": 0.9}}),
    "ppo_penalty, exact": ("ppo_penalty", {"penalty": "exact"}),
    "grpo, ptx, masked": ("grpo", {"ptx": 1.0, "truncated": "mask"}),
    "grpo, correction": ("grpo", {"correction": {"type": "truncate", "high": 1.2}}),
    "grpo, sequences masked": (
        "grpo",
        {"correction": {"type": "mask", "level": "sequence", "low": None, "high": 1.1}},
    ),
    "dapo, geometric, rejected": (
        "dapo",
        {"correction": {"type": "reject", "level": "geometric", "low": 0.9, "high": 1.1}},
    ),
    "gspo, tokens masked": ("gspo", {"correction": {"type": "mask", "low": 0.8, "high": 1.2}}),
    "ppo, ptx, sequences truncated": (
        "ppo",
        {"ptx": 1.0, "correction": {"type": "truncate", "level": "sequence", "low": 0.9, "high": 1.1}},
    ),
    "gspo, k3": ("gspo", {"kl": {"type": "loss", "estimator": "k3", "beta": 0.1}}),
    "cispo, correction, both edges": ("cispo", {"correction": "truncate", "surrogate": {"low": 0.2, "high": 0.3}}),
    "nash_md, no price, masked": ("nash_md", {"kl": "none", "truncated": "mask", "advantage": {"scale": 1.0}}),
    "clip_cov, a large share": ("clip_cov", {"surrogate": {"share": 0.3, "cov_low": 0.1}, "truncated": "mask"}),
    "kl_cov, a large share": ("kl_cov", {"surrogate": {"share": 0.3, "beta": 0.5}, "aggregation": "token_mean"}),
    "clip_cov, correction": (
        "clip_cov",
        {"surrogate": {"share": 0.3, "cov_low": 0.1, "low": 0.05, "high": 0.05}, "correction": "truncate"},
    ),
    "dppo_tv, two limits": ("dppo_tv", {"surrogate": {"limit_pos": 0.02, "limit_neg": 0.1, "cap": 1.1}}),
    "gmpo, a narrow edge": ("gmpo", {"surrogate": {"edge": 0.1}}),
    "gspo_token, gae": (
        "gspo_token",
        {"advantage": {"type": "gae", "lam": 0.9}, "surrogate": {"low": 0.1, "high": 0.2}},
    ),
    "ppo, the critic's own lambda": ("ppo", {"advantage": {"lam": 0.5, "value_lam": 1.0, "gamma": 0.9}}),
    "top_entropy, correction": (
        "top_entropy",
        {"surrogate": {"share": 0.5}, "correction": "truncate", "truncated": "mask"},
    ),
    "dual_clip, a low floor": ("dual_clip", {"surrogate": {"floor": 1.2, "low": 0.05}}),
    "pass_at_k, pairs": ("pass_at_k", {"advantage": {"k": 2, "threshold": 0.8}}),
    "p3o, correction": ("p3o", {"surrogate": {"low": 0.4, "high": 0.5}, "correction": "truncate", "truncated": "mask"}),
    "rloo, k2 in the loss": ("rloo", {"kl": {"type": "loss", "estimator": "k2", "beta": 0.1}}),
}
"""Settings of rows that exercise settings that no row has."""

PREFERENCE_VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "dpo, nll, mean": ("dpo", {"nll": 0.2, "reduce": "mean"}),
    "slic, reference": ("slic", {"reference": True, "loss": {"delta": 0.3}}),
    "kto, weights, nll": ("kto", {"loss": {"desirable": 1.5, "undesirable": 0.5}, "nll": 0.1}),
    "simpo, nll": ("simpo", {"nll": 0.3}),
    "aot, nll, mean": ("aot", {"nll": 0.3, "reduce": "mean"}),
    "aot_unpaired, nll, mean": ("aot_unpaired", {"nll": 0.3, "reduce": "mean"}),
}


def subjects() -> dict[str, Callable[[], Objective]]:
    """Every row of the tables as it is now, the named variants, and the objectives that are no rows."""

    def policy(name: str, over: dict[str, object]) -> Callable[[], Objective]:
        return lambda: PolicyObjective(POLICY_ROWS[name].settings(**over), LONGEST)

    def preference(name: str, over: dict[str, object]) -> Callable[[], Objective]:
        return lambda: PreferenceObjective(PREFERENCE_ROWS[name].settings(**over))

    found: dict[str, Callable[[], Objective]] = {name: policy(name, {}) for name in POLICY_ROWS}
    found |= {title: policy(*of) for title, of in VARIANTS.items()}
    found |= {name: preference(name, {}) for name in PREFERENCE_ROWS}
    found |= {title: preference(*of) for title, of in PREFERENCE_VARIANTS.items()}
    return found | {
        "likelihood": lambda: LikelihoodObjective(LikelihoodConfig()),
        "likelihood, sequence mean": lambda: LikelihoodObjective(LikelihoodConfig(aggregation="sequence_mean")),
        "likelihood, by probability": lambda: LikelihoodObjective(LikelihoodConfig(by_probability=True)),
        "grpo, a teacher": lambda: TaughtObjective(
            TaughtConfig.model_validate(POLICY_ROWS["grpo"].merged({"teacher_coef": 0.3})), LONGEST
        ),
        "distill": lambda: DistillObjective(DistillConfig()),
        "reward": lambda: RewardObjective(RewardConfig(margin=0.1)),
        "reward, ranks": lambda: RewardObjective(RewardConfig(compare="ranks")),
        "reward, margins, centring": lambda: RewardObjective(RewardConfig(margins="column", centring=0.01)),
    }
