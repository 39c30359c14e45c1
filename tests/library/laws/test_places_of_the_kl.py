"""Every preset with the KL in every place: the KL draws the policy to the reference, and metrics stay in bounds."""

from __future__ import annotations

import pytest

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws.cases import LONGEST, Shape, build, run
from posttrain.laws.laws import LAWS

ESTIMATORS = {"loss": ("k2", "k3"), "reward_token": ("k1",), "reward_sequence": ("k1",)}
CASES = [(name, place, estimator) for name in POLICY_ROWS for place, known in ESTIMATORS.items() for estimator in known]


def objective(name: str, place: str, estimator: str) -> PolicyObjective:
    try:
        knobs = POLICY_ROWS[name].settings(kl={"type": place, "estimator": estimator, "beta": 0.1})
    except ValueError:
        pytest.skip("the preset cannot have the KL there")
    return PolicyObjective(knobs, LONGEST)


@pytest.mark.parametrize(("name", "place", "estimator"), CASES)
def test_the_kl_falls(name: str, place: str, estimator: str) -> None:
    if name in ("pass_at_k", "top_entropy") and place != "loss":
        pytest.skip("a threshold, or a share of the tokens, leaves no exact expectation")
    assert LAWS["pull"].check(objective(name, place, estimator), Shape(1)) in (0.0, None)


@pytest.mark.parametrize(("name", "place", "estimator"), CASES)
def test_metrics_stay_in_their_bounds(name: str, place: str, estimator: str) -> None:
    found = run(build(objective(name, place, estimator), Shape(2))).metrics
    for key in ("clip_fraction", "clip_low", "clip_high", "dropped", "truncated", "ratio_ess", "correction_ess"):
        assert -1e-12 <= found.get(key, 0.0) <= 1 + 1e-12, key
    assert found.get("clip_low", 0.0) + found.get("clip_high", 0.0) <= found.get("clip_fraction", 0.0) + 1e-12
    assert found["ratio_min"] <= found["ratio"] <= found["ratio_max"]
    assert found["kl_k2"] >= 0 and found["kl_k3"] >= 0 and found["entropy"] >= 0
