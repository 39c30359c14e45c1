"""The settings of an evaluation: its rewards and metrics."""

from __future__ import annotations

import pytest

from posttrain.evaluate.config import EvaluateConfig


def test_rewards_of_ones_own_have_no_metrics_unless_they_are_named() -> None:
    usual = EvaluateConfig.model_validate({})
    assert list(usual.terms) == ["correct", "format"] and usual.terms["format"].weight == 0.0
    assert list(EvaluateConfig.model_validate({"reward": {"format": 1.0}}).terms) == ["format"]
    both = EvaluateConfig.model_validate({"reward": {"format": 1.0}, "metrics": ["correct"]})
    assert {name: term.weight for name, term in both.terms.items()} == {"format": 1.0, "correct": 0.0}


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="has normalise: policies would not be comparable"):
        EvaluateConfig.model_validate({"reward": {"correct": {"weight": 1.0, "normalise": True}}})
    with pytest.raises(ValueError, match="is in reward and in metrics"):
        _ = EvaluateConfig.model_validate({"reward": {"correct": 1.0}, "metrics": ["correct"]}).terms
