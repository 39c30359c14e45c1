"""An entry of the catalogue: its names, its text, and its limits."""

from __future__ import annotations

import pytest

from posttrain.pipeline.metrics.metric import Metric, plain

PARTS = Metric(("reward_NAME_std", "pass_at_K"), ("online",), "Spread of a `part`", fix="see [it](a.md)", low=0.1)
FALLING = Metric(("loss",), ("sft",), "The loss", "lower", "falls", "lower the rate", must_not="rise")


@pytest.mark.parametrize("name", ["reward_my:own_std", "pass_at_16", "pass_at_16_low", "reward_a_std_high"])
def test_a_name_may_have_free_parts(name: str) -> None:
    assert PARTS.pattern.fullmatch(name)


@pytest.mark.parametrize("name", ["reward_std", "pass_at_", "pass_at_k", "my_reward_a_std"])
def test_other_names_do_not_match(name: str) -> None:
    assert not PARTS.pattern.fullmatch(name)


def test_the_text() -> None:
    assert PARTS.text() == "Spread of a part. If not: see it."
    assert FALLING.text() == "The loss. Lower is better. Healthy: falls. If not: lower the rate."
    assert plain("[a `b`](c.md#d)") == "a b"


@pytest.mark.parametrize(
    ("entry", "values", "worry"),
    [
        (PARTS, [1.0] * 90 + [0.05] * 10, "n 0.05 is below 0.1: see it"),
        (PARTS, [0.05] * 90 + [1.0] * 10, ""),
        (PARTS, [], ""),
        (FALLING, [1.0] * 10 + [3.0] * 90, "n rose from 1 to 3: lower the rate"),
        (FALLING, [1.0] * 10 + [1.05] * 90, ""),
        (FALLING, [3.0] * 10 + [1.0] * 90, ""),
        (FALLING, [3.0], ""),
        (Metric(("n",), ("sft",), "", must_not="fall", fix="f"), [0.5, -0.5], "n fell from 0.5 to -0.5: f"),
        (Metric(("n",), ("sft",), "", high=1.0, fix="f", judged=("m",)), [5.0], ""),
        (Metric(("n",), ("sft",), "", high=1.0, fix="f"), [5.0], "n 5 is above 1: f"),
    ],
)
def test_the_end_of_a_run_is_judged(entry: Metric, values: list[float], worry: str) -> None:
    assert entry.worry("n", values) == worry
