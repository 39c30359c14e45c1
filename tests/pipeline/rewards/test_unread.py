"""Stages on answers and completions that no reward can read, with a real model that writes nonsense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.errors import DataError, RewardError, TableError
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import file_tables
from posttrain.pipeline.tables.store import write_table
from stages import completions, data_samples, evaluate
from stages import online as online_stage
from tests.library.models.tiny import tiny_folder

SAMPLING = {"max_tokens": 4}
DATA = "mine/prompts"
REWARD = {"correct": {"after": "####"}, "format": {"weight": 0.2, "after": "####"}}
RUN = """
online:
  runs:
    grpo:
      algorithm: grpo
      start: sft/main
      data: mine/prompts
      corpus: none
      reward_model: none
      reward: {correct: {after: '####'}, format: {weight: 0.2, after: '####'}}
      rollout: {rounds: 5, prompts: 4, group_size: 4, minibatches: 1, sampling: {max_tokens: 4}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("unread"))


@pytest.fixture
def folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, tmp_path / "models" / "sft" / "main")
    return tmp_path


def prompts(*answers: str, info: tuple[str, ...] = ()) -> None:
    rows = [
        {
            "split": split,
            "problem": f"{split}{n}",
            "prompt": [{"role": "user", "content": f"{split} {n}"}],
            "answer": answer,
            "info": info[n] if info else "{}",
            "task": "",
        }
        for split in ("train", "heldout", "test")
        for n, answer in enumerate(answers)
    ]
    write_table(with_ids(pl.DataFrame(rows), "prompts"), Path("data/mine/prompts.parquet"), "prompts")


def measured(**settings: Any) -> dict[str, float]:
    chosen = {"data": DATA, "reference": "none", "reward_model": "none", "sampling": SAMPLING, "samples": 2}
    chosen |= {"reward": {"correct": {"after": "####"}}, **settings}
    Path("params.yaml").write_text(json.dumps({"evaluate": {"settings": chosen, "policies": {"sft": "sft/main"}}}))
    completions.main("sft")
    evaluate.main("sft")
    found: dict[str, float] = json.loads(Path("results/sft/metrics.json").read_text())
    return found


def sampled_pairs() -> None:
    run = {
        "policy": "sft/main",
        "data": DATA,
        "reward_model": "none",
        "sampling": SAMPLING,
        "samples": 2,
        "reward": REWARD,
    }
    Path("params.yaml").write_text(json.dumps({"data": {"samples": {"compared": run}}}))
    data_samples.main("compared")


def online() -> None:
    Path("params.yaml").write_text(RUN)
    online_stage.main("grpo")


@pytest.mark.slow
def test_an_evaluation_says_that_no_answer_was_read_and_measures_0(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts(*"1234567")
    metrics = measured(prompts=50)
    out, printed = capsys.readouterr()
    assert metrics["parsed"] == 0 and metrics["score"] == 0
    assert "evaluate@sft: no completion has an answer that can be read and compared" in printed
    assert json.loads(Path("results/sft/headline.json").read_text()) == {"sft": 0.0} and "judged" not in metrics
    assert "completions@sft: 7 prompts are all there are in split 'test' (evaluate.settings.prompts: 50)" in printed
    assert "21/21 completions" in printed, "two samples and a greedy one of each prompt"
    assert "sft: pass@1 0.000 [0.000, " in out and "(no completion has an answer that can be read" in out


@pytest.mark.slow
def test_an_evaluation_leaves_out_prompts_whose_answer_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts("B", "7", "", "8", "9")
    measured(prompts=4)  # it samples these four, also those that cannot be read
    printed = capsys.readouterr().err
    assert "cannot read 2 of 4 answers, the first is 'B'" in printed and "all there are" not in printed
    answers = pl.read_parquet(folder / "results/sft/rollouts.parquet")["answer"]
    assert set(answers) == {"7", "8"}
    prompts("", "", "")
    metrics = measured()
    assert metrics["parsed"] == metrics["judged"] == 0, "nothing was compared with anything: this 0 is not measured"
    assert json.loads(Path("results/sft/headline.json").read_text()) == {}
    out, printed = capsys.readouterr()
    assert "no prompt has an answer" in printed and "sft: the score is not measured" in out


@pytest.mark.slow
def test_an_evaluation_leaves_out_prompts_that_lack_what_a_reward_reads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward may need something else than an answer: such prompts do not count as 0 either."""
    asked = '{"instructions": [{"kind": "lowercase"}]}'
    prompts("", "", "", info=(asked, "{}", asked))
    measured(reward={"instructions": 1.0})
    assert "reward 'instructions' cannot read 1 of 3 answers" in capsys.readouterr().err
    assert pl.read_parquet("results/sft/rollouts.parquet")["prompt_id"].n_unique() == 2
    prompts("", "", "")
    with pytest.raises(DataError, match="reward 'instructions' cannot read 3 of 3 answers"):
        measured(reward={"instructions": 1.0})
    measured(reward={"correct": 1.0, "format": 0.2})
    assert "no prompt has an answer, so reward 'correct' is not measured" in capsys.readouterr().err


@pytest.mark.slow
def test_prompts_of_two_tasks_have_a_score_each(folder: Path) -> None:
    prompts("7", "8", "9")
    table = pl.read_parquet("data/mine/prompts.parquet")
    tasks = pl.when(pl.col("answer") == "7").then(pl.lit("two_step")).otherwise(pl.lit(""))
    write_table(table.with_columns(task=tasks), Path("data/mine/prompts.parquet"), "prompts")
    metrics = measured(reward={"format": {"after": "####"}})
    rollouts = pl.read_parquet("results/sft/rollouts.parquet").filter(~pl.col("greedy"))
    for task, column in (("two_step", "score_two_step"), ("", "score_other")):
        assert metrics[column] == rollouts.filter(task=task)["reward"].mean()
    assert "working" not in metrics, "a figure of one task says nothing about both"
    assert set(rollouts["task"]) == {"two_step", ""}


@pytest.mark.slow
def test_a_score_of_ones_own_need_not_be_an_outcome(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts("", "", "")
    (folder / "custom").mkdir()
    (folder / "custom/own_length.py").write_text(
        "def brief(rollouts):\n    return [-len(one.text) / 10 for one in rollouts]\n"
    )
    metrics = measured(reward={"own_length:brief": 2.0}, metrics=["format"])
    assert "pass_at_1" not in metrics and metrics["score"] < 0 and metrics["parsed"] == 1
    assert metrics["score_low"] <= metrics["score"] <= metrics["score_high"]
    assert metrics["reward_format"] == 0, "it is measured, and does not count"
    assert f"sft: score {metrics['score']:.3f} [" in capsys.readouterr().out
    scores = pl.read_parquet("results/sft/rollouts.parquet")["scores"][0].to_list()
    assert [one["name"] for one in scores] == ["own_length:brief", "format"]


@pytest.mark.slow
def test_answers_that_cannot_be_read_stop_each_stage_before_it_works(folder: Path) -> None:
    prompts("B", "C", "D")
    for stage in (measured, sampled_pairs, online):  # an evaluation samples first, and stops before it scores
        with pytest.raises(
            DataError,
            match=r"data/mine/prompts.parquet: reward 'correct' cannot read . of . answers.*'B' \(a",
        ):
            stage()
    assert sorted(path.name for path in folder.iterdir()) == ["completions", "data", "models", "params.yaml"]


@pytest.mark.slow
def test_completions_that_cannot_be_read_stop_pairs_and_online_runs(folder: Path) -> None:
    prompts(*"1234567")
    with pytest.raises(
        DataError,
        match=r"data\.samples\.compared: none of 28 completions could be scored by 'correct' and 'format'",
    ):
        sampled_pairs()
    assert not (folder / "data/compared").exists()
    with pytest.raises(DataError, match=r"online\.runs\.grpo: none of 64 completions could be scored"):
        online()
    assert not (folder / "models/online").exists()


@pytest.mark.slow
def test_a_run_whose_groups_agree_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts(*"1234567")
    few = RUN.replace("prompts: 4, group_size: 4", "prompts: 2, group_size: 2")
    (folder / "params.yaml").write_text(few)
    online_stage.main("grpo")
    printed = capsys.readouterr().err
    assert "online.runs.grpo: in the last 5 rounds the rewards of every group are equal" in printed
    assert "online.runs.grpo: in 100% of all 10 groups" in printed


@pytest.mark.slow
def test_pairs_are_not_replaced_when_the_feedback_is_refused(folder: Path) -> None:
    (folder / "own").mkdir()
    asked = [f"question {n}" for n in range(80)]
    pairs = {"prompt": asked, "chosen": ["1"] * 80, "rejected": ["2"] * 80}
    pl.DataFrame(pairs).write_parquet(folder / "own/pairs.parquet")
    own = {"path": "own", "pairs": "pairs.parquet"}
    (folder / "params.yaml").write_text(json.dumps({"data": {"files": {"mine": own}}}))
    prepare("mine", file_tables)
    files = [folder / "data/mine/pairs.parquet", folder / "data/mine/feedback.parquet"]
    before = [file.read_bytes() for file in files]
    pl.DataFrame({**pairs, "chosen": ["3"] * 80}).write_parquet(folder / "own/pairs.parquet")
    liked = {"prompt": asked, "completion": ["1"] * 79 + [""], "label": [True, False] * 40}
    pl.DataFrame(liked).write_parquet(folder / "own/feedback.parquet")
    (folder / "params.yaml").write_text(
        json.dumps({"data": {"files": {"mine": {**own, "feedback": "feedback.parquet"}}}})
    )
    with pytest.raises(TableError, match="feedback"):
        prepare("mine", file_tables)
    assert [file.read_bytes() for file in files] == before


VALID = """
from posttrain.rewards import rule

@rule()
def valid(rollout, options):
    if int(rollout.prompt.answer) < LOST:
        raise KeyError("schema")
    return 1.0
"""


@pytest.mark.slow
def test_a_metric_of_ones_own_that_raises_is_counted_or_ends_the_evaluation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its mean over the completions that survived was shown as if nothing had happened."""
    prompts(*map(str, range(12)))
    (folder / "custom").mkdir()
    (folder / "custom/own_valid.py").write_text(VALID.replace("LOST", "4"))
    with pytest.raises(RewardError, match=r"12 of 36 completions have no value of metric 'own_valid:valid'.*33% of"):
        measured(metrics=["own_valid:valid"])
    assert not Path("results/sft/metrics.json").exists()
    (folder / "custom/own_valid.py").write_text(VALID.replace("LOST", "1"))
    metrics = measured(metrics=["own_valid:valid"])
    assert metrics["reward_own_valid:valid"] == 1.0 and metrics["reward_own_valid:valid_failed"] == 2
    assert "3 of 36 completions have no value of metric 'own_valid:valid', the first (error: it raised KeyError" in (
        capsys.readouterr().err
    )
