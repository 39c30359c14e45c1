"""DPO on pairs of the policy's own samples: the best against the worst, all clear pairs, or accepted samples."""

from __future__ import annotations

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.sampled_config import SampledPairConfig

ROWS = {
    "online_dpo": AlgorithmRow(
        "Guo 2024, arXiv:2402.04792",
        "dpo on a prompt's best sample against its worst",
        {"loss": "dpo"},
        SampledPairConfig,
    ),
    "rs_dpo": AlgorithmRow(
        "Khaki 2024, arXiv:2402.10038",
        "dpo on all pairs with sigmoid((r_i - r_j) / scale) > certainty",
        {"loss": "dpo", "select": "all_above"},
        SampledPairConfig,
    ),
    "rso": AlgorithmRow(
        "Liu 2023, arXiv:2309.06657",
        "dpo on pairs of samples accepted with probability exp((r - r_max) / temperature)",
        {"loss": "dpo", "select": "rejection_sampled"},
        SampledPairConfig,
    ),
}
