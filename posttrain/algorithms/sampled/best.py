"""The likelihood of own samples that are good: the best of a prompt (RAFT), or all above a threshold (ReST)."""

from __future__ import annotations

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.sampled_config import SampledBestConfig

ROWS = {
    "raft": AlgorithmRow(
        "Dong 2023, arXiv:2304.06767", "-mean logp of each prompt's best sample", {"select": "best"}, SampledBestConfig
    ),
    "rest": AlgorithmRow(
        "Gulcehre 2023, arXiv:2308.08998",
        "-mean logp of the samples above a quantile of the rewards that rises",
        {"select": "rising"},
        SampledBestConfig,
    ),
    "rest_em": AlgorithmRow(
        "Singh 2023, arXiv:2312.06585",
        "-mean logp of every sample whose reward reaches a threshold",
        {"select": "reaching"},
        SampledBestConfig,
    ),
}
