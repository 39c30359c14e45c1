"""The settings of supervised fine-tuning."""

from __future__ import annotations

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.rollout import TokenRow
from posttrain.supervised.sft import SftConfig
from posttrain.train.batch_sources import Example


def test_goal() -> None:
    found = SftConfig(objective=LikelihoodConfig(aggregation="sequence_mean"))
    assert found.goal() == LikelihoodObjective(LikelihoodConfig(aggregation="sequence_mean"))
    assert found.needs == {"entropy"} and found.watched == found.watch


def test_source_and_tokens() -> None:
    examples = [Example([TokenRow([1], [2] * size)]) for size in (1, 2, 3)]
    found = SftConfig(batch=2, epochs=3.0)
    assert found.source(examples, None).steps == 6  # type: ignore[arg-type]
    assert found.step_tokens(examples) == 4 + 3
