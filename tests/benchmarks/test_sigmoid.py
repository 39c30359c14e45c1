"""The fit of a sigmoid to scores over compute finds the one that made them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recipes.sigmoid import fit, fitted, points_of


@pytest.mark.parametrize(("end", "half", "steep"), [(0.8, 3e4, 2.0), (0.55, 1e5, 1.0), (0.95, 1e4, 3.0)])
def test_the_sigmoid_that_made_the_points_is_found(end: float, half: float, steep: float) -> None:
    compute = np.geomspace(2e3, 1e6, 30)
    score = 0.2 + (end - 0.2) / (1 + (half / compute) ** steep)
    found = fit(compute, score)
    assert found["A"] == pytest.approx(end, abs=0.02) and found["R0"] == pytest.approx(0.2, abs=0.03)
    assert found["half"] == pytest.approx(half, rel=0.2)


def test_the_interval_holds_the_truth_and_shrinks_with_the_noise() -> None:
    compute, rng, wide = np.geomspace(2e3, 1e6, 20), np.random.default_rng(1), []
    for noise in (0.01, 0.06):
        runs = [(compute, 0.2 + 0.5 / (1 + (3e4 / compute) ** 1.5) + rng.normal(0, noise, 20)) for _ in range(3)]
        _, low, high = fitted(runs, 12)["A"]
        assert low - 0.02 <= 0.7 <= high + 0.02
        wide.append(high - low)
    assert wide[0] < wide[1]


def test_the_evaluation_after_the_last_step_has_the_compute_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plots/online/s1.csv"
    file.parent.mkdir(parents=True)
    file.write_text("step,length,heldout_true\n0,10,0.1\n1,20,0.2\n2,,0.3\n", encoding="utf-8")
    compute, score = points_of("online/s1")
    assert compute.tolist() == [30, 30] and score.tolist() == [0.2, 0.3]
