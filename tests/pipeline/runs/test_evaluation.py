"""The settings of evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.settings.params import check

NAMES = {"data": "t/prompts", "reference": "none", "reward_model": "none"}


def settings(**given: Any) -> EvaluateParams:
    return check(EvaluateParams, {**NAMES, **given}, where="evaluate.settings")


def run(**given: Any) -> EvaluateRun:
    return check(EvaluateRun, {**NAMES, "policy": "sft/main", **given}, where="evaluate.runs.a")


def test_samples() -> None:
    found = settings(must_not_fall=["format"])
    assert found.split == "test" and found.must_not_fall == ["format"]
    with pytest.raises(ParamsError, match="must_not_fall: 'length' is not measured"):
        settings(must_not_fall=["length"])
    with pytest.raises(ParamsError, match="reward_model and the reward `model` need each other"):
        settings(reward_model="reward/main")


def test_likelihoods() -> None:
    pairs = run(data="t/pairs", reference="sft/main")
    assert (pairs.by, pairs.split) == ("likelihood", "heldout")
    assert run().by == "samples" and run(by="likelihood").split == "test"
    for wrong, message in [
        ({"data": "t/pairs", "by": "samples"}, "a table of pairs has no prompts to sample"),
        ({"data": "t/corpus", "reference": "sft/main"}, "reference: without effect if by is likelihood"),
        ({"by": "likelihood", "samples": 3}, "samples: without effect if by is likelihood"),
    ]:
        with pytest.raises(ParamsError, match=message):
            run(**wrong)
