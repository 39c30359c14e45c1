"""The settings of `online.runs`: those of the training, and the names of what a run reads."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.online.config import CONFIGS
from posttrain.pipeline.params.slots import slots
from posttrain.pipeline.runs.online import ONLINE
from posttrain.settings.params import check

INPUTS = {"start": "sft/main", "data": "a/prompts", "corpus": "none", "reward_model": "none"}


def said(over: dict[str, Any], algorithm: str = "grpo") -> str:
    run = ONLINE[algorithm]
    with pytest.raises(ParamsError) as caught:
        check(run.model, run.row.merged({"algorithm": algorithm, **INPUTS, **over}), where="online.runs.a")
    return str(caught.value)


def test_an_input_that_is_null_is_answered_with_what_to_write() -> None:
    assert "reward_model = None: expected the reward model" in said({"reward_model": None})
    assert "or none" in said({"reward_model": None})


@pytest.mark.parametrize("algorithm", [*CONFIGS])
def test_a_run_is_the_settings_of_a_call_and_names(algorithm: str) -> None:
    call, run = CONFIGS[algorithm].model, ONLINE[algorithm].model
    assert issubclass(run, call)
    assert not slots(call)
    assert run.model_fields.keys() - call.model_fields.keys() <= {*slots(run), "corpus", "critic"}
    given = check(run, ONLINE[algorithm].row.merged({"algorithm": algorithm, **INPUTS}), where="online.runs.a")
    assert {name: getattr(given, name) for name in INPUTS} == INPUTS


def test_a_reward_model_is_named_where_it_counts() -> None:
    assert "reward_model and the reward `model` need each other" in said({"reward_model": "reward/main"})
    assert "critic = reward_model: set reward_model to a model" in said({"critic": "reward_model"}, "ppo")
    assert "ptx trains on a corpus" in said({"ptx": 0.1})
