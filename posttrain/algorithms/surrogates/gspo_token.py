"""GSPO-token: GSPO's clip of the sequence's ratio, with each token's own gradient and advantage."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.surrogates.base import GspoOptions, Surrogate
from posttrain.formulas.policy import CAP, outside, ppo_clip, sequence_log_ratio


def log_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """sg(log s) + logp - sg(logp): the sequence's ratio s in value, the token's in gradient (Zheng 2025, eq. 14)."""
    sequence_N = sequence_log_ratio(logp_N, old_logp_N, lengths_B).detach()
    return (sequence_N + (logp_N - logp_N.detach())).clamp(-CAP, CAP)


SURROGATES = {
    "gspo_token": Surrogate(
        GspoOptions,
        lambda tokens, o: ppo_clip(tokens.ratio, tokens.advantage, o.low, o.high),
        "min(s_t A, clip(s_t, 1 - low, 1 + high) A), s_t = sg(s) pi / sg(pi)",
        clipped=lambda tokens, o: outside(tokens.ratio, tokens.advantage, o.low, o.high),
        log_ratio=log_ratio,
        needs_sequence=True,
    )
}
