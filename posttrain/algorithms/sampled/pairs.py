"""DPO or IPO on pairs of the policy's own samples; IPO-MD samples from a mixture with the reference."""

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
    "online_ipo": AlgorithmRow(
        "Calandriello 2024, arXiv:2403.08635",
        "ipo on a prompt's best against its worst",
        {"loss": "ipo", "reduce": "mean"},
        SampledPairConfig,
    ),
    "ipo_md": AlgorithmRow(
        "Calandriello 2024, arXiv:2403.08635",
        "ipo on a prompt's best against its worst, drawn from pi^(1-m) pi_ref^m",
        {"loss": "ipo", "reduce": "mean", "mixture": 0.25},
        SampledPairConfig,
    ),
}
