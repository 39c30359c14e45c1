"""Completions of a policy: their inputs are read, and the folder is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.pipeline.runs.completions_stage import (
    CompletionsStage,
    completions_of,
    policy_of,
)
from posttrain.pipeline.runs.sampled_evaluation import SampledParams
from posttrain.pipeline.runs.stored_completions import MEASURED, TABLE
from posttrain.rollout import Rollout, TokenRow
from posttrain.settings.params import check
from tests.pipeline.runs.prompted import make


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


def stage(**given: Any) -> CompletionsStage[SampledParams]:
    params = check(SampledParams, {"data": "mine/prompts", "reference": "none", **given}, where="evaluate.settings")
    return CompletionsStage("completions@a", "evaluate.settings", "sft/main", params)


def test_the_names() -> None:
    one = stage(reference="sft/main")
    assert (one.label, one.folder, one.table) == ("a", Path("models/sft/main"), Path("data/mine/prompts.parquet"))
    assert one.reference == Path("models/sft/main") and stage().reference is None and policy_of("a") == "sft/main"
    with completions_of("completions@a") as found:
        assert (found.name, found.section, found.params.reference) == ("completions@a", "evaluate.settings", "sft/main")
    with completions_of("completions_runs@b") as run:
        assert (run.name, run.section, run.label) == ("completions_runs@b", "evaluate.runs.b", "b")
    with pytest.raises(ParamsError, match=r"evaluate\.policies has no 'c'"):
        policy_of("c")


def test_prompts_are_encoded_for_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    one = stage(prompts=25)
    policy = one.policy()
    assert policy.folder == Path("models/sft/main")
    prompts = one.prompts(policy.text)
    assert len(prompts) == 25 and prompts[0].answer == "6" and len(prompts[0].ids) > 0
    assert callable(one.sampler) and capsys.readouterr().err == ""
    assert len(stage(prompts=99).asked()) == 30
    assert "30 prompts are all there are in split 'test' (evaluate.settings.prompts: 99)" in capsys.readouterr().err
    with pytest.raises(DataError, match="heldout"):
        stage(split="heldout").asked()


def test_the_folder_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    one = stage(prompts=2)
    rollouts = [
        Rollout(prompt, 0, TokenRow([1], [2]), [-1.0], "6", "stop") for prompt in one.prompts(one.policy().text)
    ]
    one.store(SampledCompletions(rollouts, rollouts, {"kl_k3": 0.5}))
    assert {file.name for file in Path("completions/a").iterdir()} == {TABLE, MEASURED}
    assert capsys.readouterr().out == "completions@a: 2 samples of 2 prompts\n"
    one.store_nothing()
    assert [file.name for file in Path("completions/a").iterdir()] == [MEASURED]
    assert "stores no completions" in capsys.readouterr().out


def test_errors_do_not_quote_text_that_is_not_stored() -> None:
    text = (
        Path("params.yaml")
        .read_text()
        .replace("reward_model: none}\n  pol", "reward_model: none, completions: none}\n  pol")
    )
    Path("params.yaml").write_text(text)
    with pytest.raises(DataError, match="it may quote a text"), completions_of("completions@a"):
        raise DataError(what="the row 'secret' is wrong", where="data/mine", fix="Fix it")
