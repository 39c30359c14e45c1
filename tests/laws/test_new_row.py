"""A new algorithm is one line in one table; the laws, the oracle, the settings and the docs take it from there."""

from __future__ import annotations

import pytest

from posttrain.algorithms import describe
from posttrain.algorithms.policy import POLICY_ROWS, PolicyRow
from posttrain.algorithms.preference import PREFERENCE_ROWS, PreferenceRow
from tests.laws.cases import Shape, subjects
from tests.laws.laws import LAWS

POLICY = PolicyRow(
    "rloo_clipped",
    "made up here",
    "-mean_tokens min(r A, clip(r) A) + beta k2, A = R - mean of the siblings' R",
    {
        "advantage": "leave_one_out",
        "aggregation": "token_mean",
        "kl": {"place": "loss", "estimator": "k2", "beta": 0.02},
        "truncated": "mask",
    },
)
PREFERENCE = PreferenceRow("hinge_dpo", "made up here", "max(0, delta - (h - l))", {"loss": "slic", "delta": 0.5})


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("row", [POLICY, PREFERENCE], ids=lambda row: row.name)
def test_a_row_added_here_keeps_the_laws_untold(
    law: str, row: PolicyRow | PreferenceRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: dict[str, object] = POLICY_ROWS if isinstance(row, PolicyRow) else PREFERENCE_ROWS  # type: ignore[assignment]
    monkeypatch.setitem(table, row.name, row)
    for seed in range(3):
        error = LAWS[law].check(subjects()[row.name](), Shape(seed))
        assert error is None or error <= LAWS[law].tolerance
    assert row.formula in describe.describe(row.name)
    assert f"`{row.name}`" in describe.page("")
