"""A new algorithm is one row in one file; the laws, the oracle, the settings and the docs take it from there."""

from __future__ import annotations

import pytest

from docs.make import algorithms as page
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy import rloo
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig
from posttrain.algorithms.preference import slic
from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.laws.cases import Shape
from posttrain.pipeline.commands.params.describe import description
from tests.library.laws.oracle_laws import LAWS
from tests.library.laws.subjects import subjects

POLICY = AlgorithmRow(
    "made up here",
    "-mean_tokens min(r A, clip(r) A) + beta k2, A = R - mean of the siblings' R",
    {
        "advantage": "leave_one_out",
        "aggregation": "token_mean",
        "kl": {"type": "loss", "estimator": "k2", "beta": 0.02},
        "truncated": "mask",
    },
    PolicyConfig,
    "rloo_clipped",
)
LOSS = {"loss": {"type": "slic", "delta": 0.5}}
PREFERENCE = AlgorithmRow("made up here", "max(0, delta - (h - l))", LOSS, PreferenceConfig, "hinge_dpo")


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("row", [POLICY, PREFERENCE], ids=lambda row: row.name)
def test_a_row_added_here_is_held_against_the_laws(
    law: str, row: AlgorithmRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, file = (POLICY_ROWS, rloo) if row is POLICY else (PREFERENCE_ROWS, slic)
    monkeypatch.setitem(table.modules, row.name, file.__name__)
    monkeypatch.setitem(file.ROWS, row.name, row)
    for seed in range(3):
        error = LAWS[law].check(subjects()[row.name](), Shape(seed))
        assert error is None or error <= LAWS[law].tolerance
    assert row.formula in description()["algorithms"][row.name]
    assert f"`{row.name}`" in page.page("")
