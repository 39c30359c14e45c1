"""An evaluation reads its inputs and writes its results."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.evaluation_stage import EvaluationStage, policy_evaluation, table_evaluation
from posttrain.pipeline.runs.stored_completions import write_completions, write_no_completions
from posttrain.rollout import Rollout, TokenRow
from posttrain.settings.params import check
from tests.pipeline.runs.prompted import make

NAMES = {"data": "mine/prompts", "reference": "none", "reward_model": "none"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    Path("params.yaml").write_text(
        "evaluate:\n  settings: {data: mine/prompts, reference: sft/main, reward_model: none}\n"
        "  policies: {a: sft/main}\n"
        "  runs: {b: {policy: sft/main, data: mine/prompts, reference: none, reward_model: none}}\n"
    )


def stage(**given: Any) -> EvaluationStage[EvaluateParams]:
    params = check(EvaluateParams, {**NAMES, **given}, where="evaluate.settings")
    return EvaluationStage("evaluate@a", "evaluate.settings", "sft/main", params)


def test_the_names_of_an_evaluation() -> None:
    one = stage(reference="sft/main")
    assert (one.label, one.kind, one.folder) == ("a", "prompts", Path("models/sft/main"))
    assert one.reference == Path("models/sft/main") and one.reward_model is None and stage().reference is None
    with policy_evaluation("a") as found:
        assert (found.name, found.section, found.params.reference) == ("evaluate@a", "evaluate.settings", "sft/main")
    with table_evaluation("b") as found:
        assert (found.name, found.section, found.label) == ("evaluate_runs@b", "evaluate.runs.b", "b")
    with pytest.raises(ParamsError, match=r"evaluate\.policies has no 'c'"), policy_evaluation("c"):
        pass


def test_the_first_rows_of_the_split_are_read() -> None:
    rows = stage(prompts=20).rows()
    assert rows.height == 20 and rows["split"].unique().to_list() == ["test"]
    assert stage(prompts=500).rows().height == 30


def sampled(one: EvaluationStage[EvaluateParams]) -> SampledCompletions:
    prompts = [replace(prompt, ids=[1]) for prompt in one.asked()]
    rollouts = [Rollout(prompt, 0, TokenRow([1], [2]), [-1.0], "6", "stop") for prompt in prompts]
    return SampledCompletions(rollouts, rollouts)


def test_stored_completions_are_read(made: Path) -> None:
    one = stage(prompts=3)
    with pytest.raises(DataError, match=r"completions/a: there are no completions. Run `dvc repro completions@a`"):
        one.stored()
    write_completions(sampled(one), Path("completions/a"))
    found = one.stored()
    assert found is not None and len(found.prompts) == 3 and found.rollouts[0].version == "sft/main"
    assert stage(prompts=3, completions="none").stored() is None
    with pytest.raises(DataError, match="its completions answer other prompts"):
        stage(prompts=4).stored()
    shutil.rmtree("completions/a")
    write_no_completions(Path("completions/a"))
    with pytest.raises(DataError, match="completions/a: its table is missing"):
        one.stored()
    shutil.rmtree("completions")


def test_completions_that_no_reward_can_judge_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    one = stage(prompts=3, reward={"correct": {"answer": "choice"}})
    found = sampled(one)
    letters = [replace(prompt, answer=answer) for prompt, answer in zip(found.prompts, ("A", "B", "7"), strict=True)]
    lettered = [replace(rollout, prompt=prompt) for rollout, prompt in zip(found.rollouts, letters, strict=True)]
    kept = one.judged_of(SampledCompletions(lettered, lettered))
    assert [prompt.answer for prompt in kept.prompts] == ["A", "B"]
    assert "1 prompts are left out" in capsys.readouterr().err
    hidden = stage(prompts=3, reward={"correct": {"answer": "choice"}}, completions="none")
    hidden.judged_of(SampledCompletions(lettered, lettered))
    said = capsys.readouterr().err
    assert "no reward can read 1 of 3 answers" in said and "'7'" not in said, "no text of a row is quoted"


def test_the_tokenizer_of_the_policy_is_there_for_rewards() -> None:
    text = stage(reward={"code": 1.0}).text()
    assert text is not None and text.stops.tokens
    assert stage().text() is None, "a function of a rollout reads none"
