"""The table of policy objectives: each algorithm is a row of settings that name formulas."""

from __future__ import annotations

from typing import Any

from posttrain.algorithms.objective import AlgorithmRow, algorithm_table
from posttrain.algorithms.policy_config import PolicyConfig


def _kl(place: str, estimator: str, beta: float) -> dict[str, Any]:
    return {"type": place, "estimator": estimator, "beta": beta}


POLICY_ROWS: dict[str, AlgorithmRow] = algorithm_table(
    PolicyConfig,
    (
        AlgorithmRow(
            "reinforce",
            "Williams 1992, doi:10.1007/BF00992696",
            "-mean_i sum_t A logp, A = R - mean_batch(R), R = reward - beta sum_t k1",
            {
                "advantage": "batch_centred",
                "surrogate": "reinforce",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.05),
            },
        ),
        AlgorithmRow(
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
        AlgorithmRow(
            "rloo",
            "Ahmadian 2024, arXiv:2402.14740",
            "-mean_i sum_t A logp, A = R - mean of the siblings' R, R = reward - beta sum_t k1",
            {
                "advantage": "leave_one_out",
                "surrogate": "reinforce",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.05),
            },
        ),
        AlgorithmRow(
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
        AlgorithmRow(
            "ppo_penalty",
            "Schulman 2017, arXiv:1707.06347, section 4",
            "-mean_tokens [r A - beta KL(old || new)], A = gae, beta halved or doubled towards the target",
            {
                "advantage": "gae",
                "surrogate": "importance",
                "aggregation": "token_mean",
                "whiten": True,
                "penalty": "sampled",
            },
        ),
        AlgorithmRow(
            "trpo",
            "Schulman 2015, arXiv:1502.05477",
            "maximise mean_tokens r A subject to mean KL(old || new) <= delta",
            {
                "advantage": "group_zscore",
                "surrogate": "importance",
                "aggregation": "token_mean",
                "update": "trpo",
            },
        ),
        AlgorithmRow(
            "grpo",
            "Shao 2024, arXiv:2402.03300",
            "-mean_i mean_t [min(r A, clip(r) A) - beta k3], A = (R - mean) / (std + eps)",
            {"kl": _kl("loss", "k3", 0.04)},
        ),
        AlgorithmRow(
            "dr_grpo",
            "Liu 2025, arXiv:2503.20783",
            "-sum_i sum_t min(r A, clip(r) A) / (B L_max), A = R - mean",
            {"advantage": "group_centred", "aggregation": "fixed_length"},
        ),
        AlgorithmRow(
            "gspo",
            "Zheng 2025, arXiv:2507.18071",
            "-mean_i min(s A, clip(s) A), s = exp(mean_t(logp - old_logp))",
            {"surrogate": "gspo"},
        ),
        AlgorithmRow(
            "cispo",
            "MiniMax 2025, arXiv:2506.13585",
            "-mean_tokens sg(min(r, 1 + high)) A logp",
            {"surrogate": "cispo", "aggregation": "token_mean"},
        ),
        AlgorithmRow(
            "dapo",
            "Yu 2025, arXiv:2503.14476",
            "-mean_tokens min(r A, clip(r, 0.8, 1.28) A), groups that agree sampled again, soft overlong punishment",
            {"aggregation": "token_mean", "surrogate": {"high": 0.28}, "resample": 3, "overlong": 0.2},
        ),
        AlgorithmRow(
            "grpo_plus",
            "Luo 2025 (DeepCoder), together.ai/blog/deepcoder",
            "-mean_i mean_t min(r A, clip(r, 0.8, 1.4) A), truncated answers give no loss",
            {"surrogate": {"high": 0.4}, "truncated": "mask"},
        ),
        AlgorithmRow(
            "nash_md",
            "Munos 2023, arXiv:2312.00886",
            "-mean_i sum_t A logp, A = mean_j P(i beats j) - 1/2 - beta sum_t k1, j drawn from pi^(1-m) pi_ref^m",
            {
                "advantage": "win_rate",
                "surrogate": "reinforce",
                "aggregation": "sequence_sum",
                "kl": _kl("reward_sequence", "k1", 0.02),
            },
        ),
        AlgorithmRow(
            "sapo",
            "Gao 2025, arXiv:2511.20347",
            "-mean_i mean_t (4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0, else 1.05",
            {"surrogate": "sapo"},
        ),
        AlgorithmRow(
            "gmpo",
            "Zhao 2025, arXiv:2507.20673",
            "-mean_i exp(mean_t min(log r, 0.4)) A, max(log r, -0.4) where A < 0",
            {"surrogate": "gmpo"},
        ),
        AlgorithmRow(
            "dppo_tv",
            "Qi 2026, arXiv:2602.04879",
            "-mean_tokens sg(min(r, 5) M) A logp, M = 0 where moving away from the sampler and abs(pi - mu) > 0.2",
            {"surrogate": "dppo_tv", "aggregation": "token_mean"},
        ),
        AlgorithmRow(
            "dppo_kl",
            "Qi 2026, arXiv:2602.04879",
            "-mean_tokens sg(min(r, 5) M) A logp, M = 0 where moving away from the sampler and binary KL > 0.05",
            {"surrogate": "dppo_kl", "aggregation": "token_mean"},
        ),
        AlgorithmRow(
            "gspo_token",
            "Zheng 2025, arXiv:2507.18071, section 4.3",
            "-mean_i mean_t min(s_t A, clip(s_t) A), s_t = sg(s) pi / sg(pi), s = exp(mean_t(logp - old_logp))",
            {"surrogate": "gspo_token"},
        ),
        AlgorithmRow(
            "clip_cov",
            "Cui 2025, arXiv:2505.22617",
            "-mean_i mean_t min(r A, clip(r) A), 0 for a random 2e-4 of the tokens among those with cov in [1, 5]",
            {"surrogate": "clip_cov"},
        ),
        AlgorithmRow(
            "kl_cov",
            "Cui 2025, arXiv:2505.22617",
            "-mean_i mean_t [r A - beta abs(logp - old_logp) on the 2e-3 of the tokens with the largest cov]",
            {"surrogate": "kl_cov"},
        ),
        AlgorithmRow(
            "maxrl",
            "Tajwar 2026, arXiv:2602.02710",
            "-mean_i sum_t A logp, A = (R - mean) / mean of the group, 0 where the mean is 0",
            {"advantage": "maxrl", "surrogate": "reinforce", "aggregation": "sequence_sum"},
        ),
        AlgorithmRow(
            "gdpo",
            "Liu 2026, arXiv:2601.05242",
            "-mean_i mean_t min(r A, clip(r) A), A = sum_k w_k zscore_group(R_k), whitened over the rows of the step",
            {"advantage": "gdpo"},
        ),
    ),
)
