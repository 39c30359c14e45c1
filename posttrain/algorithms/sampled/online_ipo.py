"""IPO on a prompt's best sample against its worst; IPO-MD samples from a mixture with the reference."""

from __future__ import annotations

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.sampled_config import SampledPairConfig

ROWS = {
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
