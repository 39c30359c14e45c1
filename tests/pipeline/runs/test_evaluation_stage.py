"""An evaluation reads its inputs and writes its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import ParamsError
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.evaluation_stage import (
    EvaluationStage,
    _need_answers,
    policy_evaluation,
    table_evaluation,
)
from posttrain.pipeline.tables.store import write_table
from posttrain.rollout import Prompt
from posttrain.settings.params import check
from tests.library.models.tiny import tiny_folder

NAMES = {"data": "mine/prompts", "reference": "none", "reward_model": "none"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and 30 prompts in the split `test`."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "models/sft").mkdir(parents=True)
    tiny_folder(folder / "tiny").rename(folder / "models/sft/main")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{nth}+1="}], "answer": str(nth + 1), "problem": str(nth),
            "split": "train" if nth < 5 else "test", "task": "", "info": "{}",
        }
        for nth in range(35)
    ]  # fmt: skip
    write_table(from_rows(rows, "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    return folder


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


def test_prompts_are_encoded_for_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    one = stage(prompts=25)
    policy = one.policy()
    assert policy.folder == Path("models/sft/main")
    prompts = one.prompts(policy)
    assert len(prompts) == 25 and prompts[0].answer == "6" and len(prompts[0].ids) > 0
    assert callable(one.sampler) and capsys.readouterr().err == ""
    assert len(stage(prompts=99).prompts(policy)) == 30
    assert "30 prompts are all there are in split 'test' (evaluate.settings.prompts: 99)" in capsys.readouterr().err


def test_rewards_that_only_lack_answers() -> None:
    def prompt(answer: str) -> Prompt:
        return Prompt("a", [{"role": "user", "content": "a"}], (), answer)

    correct = stage(reward={"correct": 1.0}).params
    assert _need_answers(correct, [prompt(""), prompt("")]) == ["correct"]
    assert _need_answers(correct, [prompt("1")]) == []
    assert _need_answers(stage(reward={"format": 1.0}).params, [prompt("")]) == []
