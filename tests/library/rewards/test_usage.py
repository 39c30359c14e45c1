"""What verdicts took, as metrics and as sums over rounds."""

from __future__ import annotations

from posttrain.rewards.usage import USED, judge_metrics, judge_totals


def test_judge_metrics_are_the_difference() -> None:
    before = dict(USED)
    assert judge_metrics(before) == {}
    USED.update(requests=2, tokens_in=30)
    try:
        assert judge_metrics(before) == {"judge_requests": 2.0, "judge_tokens_in": 30.0} | {
            f"judge_{name}": 0.0 for name in before if name not in ("requests", "tokens_in")
        }
    finally:
        USED.clear()
        USED.update(before)


def test_judge_totals() -> None:
    rounds = [{"judge_requests": 1.0, "reward": 5.0}, {"judge_requests": 2.0, "judge_cost": 0.5}]
    assert judge_totals(rounds) == {"judge_requests": 3.0, "judge_cost": 0.5}
