"""The settings of completions are read without those of scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.params.stage_table import SCORING
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.pipeline.runs.sampled_evaluation import SampledParams, SampledRun, load_policies, load_sampled

PARAMS = """
evaluate:
  settings: {data: mine/prompts, reference: none, reward_model: none, samples: 2, reward: {no_such: 1.0}}
  policies: {a: sft/main}
  runs:
    b: {policy: sft/main, data: mine/corpus, reference: none, reward_model: none}
    c: {policy: sft/main, data: mine/prompts, reference: none, reward_model: none, completions: none, max_failed: 0.2}
    d: {policy: sft/main, data: mine/prompts, reference: none, reward_model: none, sample: 3}
"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)


def test_a_wrong_reward_does_not_keep_a_policy_from_being_sampled() -> None:
    found = load_sampled(SampledParams, "evaluate.settings")
    assert (found.data, found.samples, found.are_stored) == ("mine/prompts", 2, True)
    with pytest.raises(ParamsError, match=r"d\.sample: unknown key"):
        load_sampled(SampledRun, "evaluate.runs.d")


def test_what_is_stored() -> None:
    likelihood, private = (load_sampled(SampledRun, f"evaluate.runs.{name}") for name in "bc")
    assert likelihood.by == "likelihood" and not likelihood.are_stored
    assert private.by == "samples" and not private.are_stored


def test_the_settings_of_scores_are_all_the_others() -> None:
    assert EvaluateParams.model_fields.keys() - SampledParams.model_fields.keys() == SCORING
    assert EvaluateRun.model_fields.keys() - SampledRun.model_fields.keys() == SCORING


def test_the_policies() -> None:
    assert load_policies() == {"a": "sft/main"}
    Path("params.yaml").write_text("evaluate: {policies: {a: none}}\n")
    with pytest.raises(ParamsError, match="a short name and a folder under models/"):
        load_policies()
