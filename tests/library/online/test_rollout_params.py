"""How much is sampled and how often it is used."""

from __future__ import annotations

import pytest

from posttrain.online.rollout_params import RolloutParams


def test_steps_a_round() -> None:
    assert RolloutParams(minibatches=3, epochs=2).steps_a_round == 6
    with pytest.raises(ValueError, match="cannot share out 2 prompts"):
        RolloutParams(minibatches=3, prompts=2)


def test_foreign() -> None:
    assert RolloutParams().foreign is False and RolloutParams(ahead=1).foreign is True
    assert RolloutParams(engine="vllm").foreign is True
