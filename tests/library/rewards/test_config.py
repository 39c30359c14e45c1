"""The settings of scores alone."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain import ScoreConfig
from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from tests.library.models.tiny import rollout_of


def short(rollouts: Any) -> list[float]:
    return [-float(len(one.text)) for one in rollouts]


def test_a_scorer_without_sampling() -> None:
    config = ScoreConfig(reward={"own": short, "length": {"weight": 0.5, "limit": 4, "unit": "words"}})
    scorer = config.scorer_of(Runtime(DeviceParams()), None, None, "here", 9)
    (scored,) = scorer.score([rollout_of("a b")])
    assert scorer.total(scored) == pytest.approx(-3.0 + 0.5 * 0.5) and scorer._context.max_tokens == 9
    assert list(config.terms) == ["own", "length"] and list(ScoreConfig().terms) == ["correct"]
    with pytest.raises(ParamsError, match="unknown reward 'nothing'"):
        ScoreConfig(reward={"nothing": 1.0})
