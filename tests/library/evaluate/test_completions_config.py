"""The settings of completions have no reward, and those of an evaluation have both."""

from __future__ import annotations

import pytest

from posttrain import CompletionsConfig, EvaluateConfig
from posttrain.errors import ParamsError
from posttrain.evaluate.context import ContextTurn
from posttrain.evaluate.intervals import SEED


def test_an_evaluation_has_the_settings_of_completions() -> None:
    alone = CompletionsConfig(samples=3, context=[ContextTurn(role="system", content="Be brief.")])
    assert alone.seed == EvaluateConfig().seed == SEED
    both = EvaluateConfig(samples=3, context=alone.context, reward={"correct": 1.0})
    shared = CompletionsConfig.model_fields.keys()
    assert {name: getattr(both, name) for name in shared} == {name: getattr(alone, name) for name in shared}
    assert EvaluateConfig.model_fields.keys() - shared == {"reward", "metrics", "max_failed", "on_failures"}


def test_a_reward_is_no_setting_of_completions() -> None:
    with pytest.raises(ParamsError, match="reward: unknown key"):
        CompletionsConfig(reward={"correct": 1.0})  # type: ignore[call-arg]
    with pytest.raises(ParamsError, match="a prompt cannot follow"):
        CompletionsConfig(context=[ContextTurn(role="assistant", content="Yes?")])
