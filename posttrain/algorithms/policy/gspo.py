"""GSPO: PPO's clip of a whole sequence's ratio. In GSPO-token, each token keeps its own gradient and advantage."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import ClipOptions, clipped, term
from posttrain.algorithms.surrogate import Surrogate
from posttrain.formulas.policy import CAP, sequence_log_ratio


class GspoOptions(ClipOptions):
    """Bounds of a whole sequence's ratio, which stays close to 1."""

    low: float = Field(3e-4, gt=0, le=1, description="lower bound of the sequence's ratio: 1 - low")
    high: float = Field(4e-4, description="upper bound of the sequence's ratio: 1 + high")


def per_token_ratio(logp_N: Tensor, old_logp_N: Tensor, lengths_B: Tensor) -> Tensor:
    """sg(log s) + logp - sg(logp): the sequence's ratio s in value, the token's in gradient (Zheng 2025, eq. 14)."""
    sequence_N = sequence_log_ratio(logp_N, old_logp_N, lengths_B).detach()
    return (sequence_N + (logp_N - logp_N.detach())).clamp(-CAP, CAP)


SURROGATES = {
    "gspo": Surrogate(
        GspoOptions,
        term,
        "min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r)",
        clipped=clipped,
        log_ratio=sequence_log_ratio,
        needs_sequence=True,
        per_sequence=True,
    ),
    "gspo_token": Surrogate(
        GspoOptions,
        term,
        "min(s_t A, clip(s_t, 1 - low, 1 + high) A), s_t = sg(s) pi / sg(pi)",
        clipped=clipped,
        log_ratio=per_token_ratio,
        needs_sequence=True,
    ),
}
ROWS = {
    "gspo": AlgorithmRow(
        "Zheng 2025, arXiv:2507.18071",
        "-mean_i min(s A, clip(s) A), s = exp(mean_t(logp - old_logp))",
        {"surrogate": "gspo"},
    ),
    "gspo_token": AlgorithmRow(
        "Zheng 2025, arXiv:2507.18071, section 4.3",
        "-mean_i mean_t min(s_t A, clip(s_t) A), s_t = sg(s) pi / sg(pi), s = exp(mean_t(logp - old_logp))",
        {"surrogate": "gspo_token"},
    ),
}
