"""Importance ratios of the trained policy over the one that sampled."""

from __future__ import annotations

from torch import Tensor

from posttrain.formulas.ragged import mean_rows, spread

CAP = 20.0
"""Bound on |log ratio|: exp stays finite where a policy has run away. A token beyond it has no gradient."""


def token_log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """logp - old_logp of each token."""
    del lengths_B
    return (logp_N - old_logp_N).clamp(-CAP, CAP)


def sequence_log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """mean_t(logp - old_logp), the length-normalised sequence ratio, on each token (GSPO, Zheng 2025)."""
    mean_B = mean_rows(logp_N - old_logp_N, lengths_B)
    return spread(mean_B, lengths_B, logp_N.numel()).clamp(-CAP, CAP)


def truncated_importance(recomputed_logp_N: Tensor, sampled_logp_N: Tensor, cap: float) -> Tensor:
    """sg(min(exp(recomputed - sampled), cap)): corrects for a sampler whose numbers are not the trainer's (Yao 2025).

    Both are log-probs of the policy that sampled, as the trainer computes them and as the sampler recorded them.
    """
    return (recomputed_logp_N - sampled_logp_N).detach().clamp(-CAP, CAP).exp().clamp(max=cap)
