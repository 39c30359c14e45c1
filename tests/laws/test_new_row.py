"""A new algorithm is one line in one table; the laws, the oracle, the settings and the docs take it from there."""

from __future__ import annotations

import pytest

from posttrain.algorithms import describe
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy_config import PolicyConfig
from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS, PreferenceConfig
from posttrain.laws.cases import Shape
from tests.laws.oracle_laws import LAWS
from tests.laws.subjects import subjects

POLICY = AlgorithmRow(
    "rloo_clipped",
    "made up here",
    "-mean_tokens min(r A, clip(r) A) + beta k2, A = R - mean of the siblings' R",
    {
        "advantage": "leave_one_out",
        "aggregation": "token_mean",
        "kl": {"type": "loss", "estimator": "k2", "beta": 0.02},
        "truncated": "mask",
    },
    PolicyConfig,
)
LOSS = {"loss": {"type": "slic", "delta": 0.5}}
PREFERENCE = AlgorithmRow("hinge_dpo", "made up here", "max(0, delta - (h - l))", LOSS, PreferenceConfig)


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("row", [POLICY, PREFERENCE], ids=lambda row: row.name)
def test_a_row_added_here_is_held_against_the_laws(
    law: str, row: AlgorithmRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICY_ROWS if row is POLICY else PREFERENCE_ROWS, row.name, row)
    for seed in range(3):
        error = LAWS[law].check(subjects()[row.name](), Shape(seed))
        assert error is None or error <= LAWS[law].tolerance
    assert row.formula in describe.describe(row.name)
    assert f"`{row.name}`" in describe.page("")
