"""`compare`, the results table, the page and the sweep's page judge in the same words."""

from __future__ import annotations

from posttrain.pipeline.compare.comparison import in_words
from posttrain.pipeline.compare.statistics import Finding
from posttrain.pipeline.compare.words import ABOUT_ONE_SEED, ONE_SEED, judged
from posttrain.pipeline.report.summary import verdict


def test_a_verdict_of_one_seed_is_marked_everywhere() -> None:
    assert judged("better", over_seeds=True) == "better" and judged("better", over_seeds=False) == "better (1 seed)"
    assert ABOUT_ONE_SEED.startswith(ONE_SEED)
    for over, mark in ((True, ""), (False, " (1 seed)")):
        finding = Finding(0.2, 0.1, 0.3, 0.01, over)
        assert in_words(finding, "a", "b") == f"a is better{mark}"
        gain = {"gain": 0.2, "gain_low": 0.1, "gain_high": 0.3, "over_seeds": float(over)}
        assert verdict(gain) == f"better{mark}"


def test_without_a_clear_difference_both_say_the_same() -> None:
    assert in_words(Finding(0.2, -0.1, 0.5, 0.2, True), "a", "b") == "cannot tell"
    assert verdict({"gain": 0.2, "gain_low": -0.1, "gain_high": 0.5}) == "cannot tell"
