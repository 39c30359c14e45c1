"""The settings of a small model that is trained from scratch."""

from __future__ import annotations

import pytest

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ParamsError
from posttrain.models.scratch import ScratchParams
from posttrain.rollout import TokenRow
from posttrain.supervised.scratch import ScratchConfig
from posttrain.train.batch_sources import Example, StepSource


def test_goal_and_source() -> None:
    found = ScratchConfig(steps=7, batch=2)
    assert found.goal() == LikelihoodObjective(LikelihoodConfig())
    source = found.source([Example([TokenRow([], [1, 2])])] * 3, None)  # type: ignore[arg-type]
    assert isinstance(source, StepSource) and source.steps == 7


def test_what_cannot_be_trained() -> None:
    with pytest.raises(ParamsError, match=r"longer than shape\.context"):
        ScratchConfig(window=100, shape=ScratchParams(context=64))
    with pytest.raises(ParamsError, match="nothing to keep frozen"):
        ScratchConfig(adapter="lora")  # type: ignore[arg-type]
