"""Curves of settings: the mean over seeds and their range, at the same steps."""

from __future__ import annotations

import numpy as np

from posttrain.pipeline.compare.bands import POINTS, bands
from posttrain.pipeline.compare.settings import Setting
from tests.pipeline.compare.trained import trained


def curve(values: list[float | None], metric: str = "reward") -> dict[str, list[float | None]]:
    return {"step": [float(step) for step in range(len(values))], "loss": [0.1] * len(values), metric: values}


def test_the_mean_and_the_range_over_seeds() -> None:
    seeds = [trained("grpo", seed=seed, curve=curve([value] * 10)) for seed, value in ((1, 0.2), (2, 0.6))]
    metric, (band,) = bands([Setting("grpo", seeds)])
    assert metric == "reward" and band.label == "grpo" and band.steps.tolist() == list(range(1, 11))
    assert np.allclose(band.mean, 0.4) and np.allclose(band.low, 0.2) and np.allclose(band.high, 0.6)


def test_seeds_are_compared_up_to_the_shortest() -> None:
    seeds = [trained("grpo", seed=1, curve=curve([0.0] * 4)), trained("grpo", seed=2, curve=curve([1.0] * 9))]
    _, (band,) = bands([Setting("grpo", seeds)])
    assert band.steps.max() == 4 and np.allclose(band.mean, 0.5)


def test_a_long_curve_has_few_points_that_keep_its_mean() -> None:
    rising: list[float | None] = [float(step) for step in range(1000)]
    _, (band,) = bands([Setting("grpo", [trained("grpo", curve=curve(rising))])])
    assert len(band.steps) == POINTS and abs(band.mean.mean() - 499.5) < 5
    assert (np.diff(band.mean) > 0).all() and (band.low == band.high).all()


def test_missing_values_are_left_out() -> None:
    _, (band,) = bands([Setting("grpo", [trained("grpo", curve=curve([1.0, None, 3.0]))])])
    assert band.steps.tolist() == [1.0, 3.0] and band.mean.tolist() == [1.0, 3.0]


def test_settings_without_a_common_metric_have_no_curves() -> None:
    sft = Setting("sft", [trained("sft", curve=curve([1.0], "accuracy"))])
    grpo = Setting("grpo", [trained("grpo", curve=curve([1.0]))])
    assert bands([sft, grpo]) == ("", []) and bands([]) == ("", [])
    assert bands([Setting("sft", [trained("sft", curve={})])]) == ("", [])
