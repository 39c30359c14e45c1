"""GSPO: PPO's clip of the ratio of a whole sequence."""

from __future__ import annotations

from pydantic import Field

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import ClipOptions, clipped, term
from posttrain.algorithms.surrogate import Surrogate
from posttrain.formulas.policy import sequence_log_ratio


class GspoOptions(ClipOptions):
    """Edges of the ratio of a whole sequence, which stays close to 1."""

    low: float = Field(3e-4, gt=0, le=1, description="lower edge of the sequence's ratio: 1 - low")
    high: float = Field(4e-4, description="upper edge of the sequence's ratio: 1 + high")


SURROGATES = {
    "gspo": Surrogate(
        GspoOptions,
        term,
        "min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r)",
        clipped=clipped,
        log_ratio=sequence_log_ratio,
        needs_sequence=True,
        per_sequence=True,
    )
}
ROWS = {
    "gspo": AlgorithmRow(
        "Zheng 2025, arXiv:2507.18071",
        "-mean_i min(s A, clip(s) A), s = exp(mean_t(logp - old_logp))",
        {"surrogate": "gspo"},
    )
}
