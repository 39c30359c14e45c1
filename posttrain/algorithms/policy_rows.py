"""The table of policy objectives: each algorithm is a row of knobs that name formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms.policy_knobs import READERS, PolicyKnobs
from posttrain.algorithms.row import Row


@dataclass(frozen=True)
class PolicyRow(Row[PolicyKnobs]):
    """One policy objective."""

    def laid(self, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's knobs as plain data with some replaced, before they are typed."""
        return self.lay(PolicyKnobs, READERS, over)

    def settings(self, **over: Any) -> PolicyKnobs:
        """The row's knobs with some replaced."""
        return PolicyKnobs.model_validate(self.laid(over))


def _kl(place: str, estimator: str, beta: float) -> dict[str, Any]:
    return {"place": place, "estimator": estimator, "beta": beta}


def _clip(low: float | None, high: float) -> dict[str, Any]:
    return {"low": low, "high": high}


POLICY_ROWS: dict[str, PolicyRow] = {
    row.name: row
    for row in (
        PolicyRow(
            "reinforce",
            "Williams 1992, doi:10.1007/BF00992696",
            "-mean_i sum_t A logp, A = R - mean_batch(R), R = reward - beta sum_t k1",
            {
                "advantage": "batch_centred",
                "surrogate": "score",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.05),
            },
        ),
        PolicyRow(
            "reinforce_pp",
            "Hu 2025, arXiv:2501.03262",
            "-mean_tokens min(r A, clip(r) A), A_t = R - beta sum_{s >= t} k1_s, whitened over all tokens of the step",
            {
                "advantage": "return_to_go",
                "aggregation": "token_mean",
                "whiten": True,
                "kl": _kl("reward_token", "k1", 0.01),
            },
        ),
        PolicyRow(
            "rloo",
            "Ahmadian 2024, arXiv:2402.14740",
            "-mean_i sum_t A logp, A = R - mean of the siblings' R, R = reward - beta sum_t k1",
            {
                "advantage": "leave_one_out",
                "surrogate": "score",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.05),
            },
        ),
        PolicyRow(
            "ppo",
            "Schulman 2017, arXiv:1707.06347",
            "-mean_tokens min(r A, clip(r) A), A = gae, critic 0.5 max((V - R)^2, (clip(V) - R)^2)",
            {
                "advantage": "gae",
                "aggregation": "token_mean",
                "whiten": True,
                "kl": _kl("reward_token", "k1", 0.05),
            },
        ),
        PolicyRow(
            "ppo_penalty",
            "Schulman 2017, arXiv:1707.06347, section 4",
            "-mean_tokens [r A - beta KL(old || new)], A = gae, beta halved or doubled towards the target",
            {
                "advantage": "gae",
                "surrogate": "unclipped",
                "aggregation": "token_mean",
                "whiten": True,
                "penalty": {"kind": "sampled", "beta": 1.0, "target": 0.01},
            },
        ),
        PolicyRow(
            "trpo",
            "Schulman 2015, arXiv:1502.05477",
            "maximise mean_tokens r A subject to mean KL(old || new) <= delta",
            {
                "advantage": "group_zscore",
                "surrogate": "unclipped",
                "aggregation": "token_mean",
                "update": "trpo",
            },
        ),
        PolicyRow(
            "grpo",
            "Shao 2024, arXiv:2402.03300",
            "-mean_i mean_t [min(r A, clip(r) A) - beta k3], A = (R - mean) / (std + eps)",
            {"kl": _kl("loss", "k3", 0.04)},
        ),
        PolicyRow(
            "dr_grpo",
            "Liu 2025, arXiv:2503.20783",
            "-sum_i sum_t min(r A, clip(r) A) / (B L_max), A = R - mean",
            {"advantage": "group_centred", "aggregation": "fixed_length"},
        ),
        PolicyRow(
            "gspo",
            "Zheng 2025, arXiv:2507.18071",
            "-mean_i min(s A, clip(s) A), s = exp(mean_t(logp - old_logp))",
            {"ratio": "sequence", "clip": _clip(3e-4, 4e-4)},
        ),
        PolicyRow(
            "cispo",
            "MiniMax 2025, arXiv:2506.13585",
            "-mean_tokens sg(min(r, 1 + high)) A logp",
            {"surrogate": "weight", "aggregation": "token_mean", "clip": _clip(None, 4.0)},
        ),
        PolicyRow(
            "dapo",
            "Yu 2025, arXiv:2503.14476",
            "-mean_tokens min(r A, clip(r, 0.8, 1.28) A), groups that agree sampled anew, soft overlong punishment",
            {"aggregation": "token_mean", "clip": _clip(0.2, 0.28), "resample": 3, "overlong": 4},
        ),
        PolicyRow(
            "grpo_plus",
            "Luo 2025 (DeepCoder), together.ai/blog/deepcoder",
            "-mean_i mean_t min(r A, clip(r, 0.8, 1.4) A), truncated answers give no loss",
            {"clip": _clip(0.2, 0.4), "truncated": "mask"},
        ),
        PolicyRow(
            "nash_md",
            "Munos 2023, arXiv:2312.00886",
            "-mean_i sum_t A logp, A = mean_j P(i beats j) - 1/2 - beta sum_t k1, j drawn from pi^(1-m) pi_ref^m",
            {
                "advantage": "win_rate",
                "surrogate": "score",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.02),
            },
        ),
    )
}
