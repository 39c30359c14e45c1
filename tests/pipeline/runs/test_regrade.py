"""Stored rollouts of a real run get other scores; the run's own rewards give the same ones again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.errors import DataError, ParamsError
from posttrain.pipeline.lineage.explain import why
from posttrain.pipeline.runs.regrade import RegradeRun, RegradeStage, _figures, regrade_stage, summary
from posttrain.pipeline.tables.curve import read_curve
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.settings.params import check
from stages.regrade import main
from tests.workspace import dvc

NAMES = {"rollouts": "online/grpo", "data": "two_step/prompts", "reward_model": "none"}
RUNS = """
regrade:
  runs:
    same: {rollouts: online/grpo, data: two_step/prompts, reward_model: none, reward: {correct: 1.0, format: 0.2}}
    form: {rollouts: online/grpo, data: two_step/prompts, reward_model: none, reward: {format: 1.0}}
"""


@pytest.fixture
def workspace(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(own_workspace)
    params = Path("params.yaml")
    params.write_text(params.read_text(encoding="utf-8") + RUNS, encoding="utf-8")
    return own_workspace


def test_rewards_of_a_run() -> None:
    with pytest.raises(ParamsError, match="reward"):
        check(RegradeRun, NAMES, where="regrade.runs.a")
    with pytest.raises(ParamsError, match="all rewards have weight 0"):
        check(RegradeRun, {**NAMES, "reward": {"format": 0.0}}, where="regrade.runs.a")
    with pytest.raises(ParamsError, match="reward_model"):
        check(RegradeRun, {**NAMES, "reward": {"model": 1.0}}, where="regrade.runs.a")


def test_the_figures_of_both_rewards() -> None:
    table = pl.DataFrame({"before": [0.0, 1.0, 1.0, None], "reward": [1.0, 1.0 + 1e-9, 0.5, 1.0], "step": [0, 0, 1, 1]})
    found = _figures(table)
    assert found["reward_before"] == pytest.approx(2 / 3) and found["reward"] == pytest.approx(2.5 / 3)
    assert (found["raised"], found["lowered"], found["without_both"]) == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
        0.25,
    )
    assert (
        summary("a", {"rollouts": 4, **found})
        == "a: 3 of 4 rollouts, reward 0.667 -> 0.833, 33.3% raised, 33.3% lowered"
    )
    nothing = _figures(pl.DataFrame({"before": [None], "reward": [1.0]}, schema_overrides={"before": pl.Float64}))
    assert summary("a", {"rollouts": 1, **nothing}) == "a: no rollout has both scores"


def test_the_rewards_of_the_run_give_its_scores_again(workspace: Path) -> None:
    main("same")
    found: dict[str, Any] = json.loads(Path("metrics/regrade/same.json").read_text())
    assert found["reward"] == found["reward_before"] and found["raised"] == found["lowered"] == 0.0
    curve, own = read_curve(Path("plots/regrade/same.csv")), read_curve(Path("plots/online/grpo.csv"))
    assert curve["reward"] == curve["reward_before"] and len(curve["step"]) == len(own["step"])


def test_other_rewards_are_a_tracked_result_that_why_explains(workspace: Path) -> None:
    done = dvc(workspace, "repro", "--quiet", "regrade@form")
    assert done.returncode == 0, done.stdout
    rows = read_table("metrics/regrade/form.parquet", "regraded")
    stored = pl.concat(
        [read_table(file, "training_rollouts") for file in sorted(Path("rollouts/online/grpo").glob("*.parquet"))]
    )
    assert (
        rows["rollout"].to_list() == stored["id"].to_list() and rows["before"].to_list() == stored["reward"].to_list()
    )
    form = [{score["name"]: score["value"] for score in row}["format"] for row in stored["scores"].to_list()]
    assert rows["reward"].to_list() == form, "as the run itself scored the form"
    said = why("regrade/form.reward", "words")
    assert "computed again: " in said and ", agrees" in said
    assert "raised most" in said
    assert "scored again: regrade/form" in why("online/grpo.reward", "words")
    row = rows["rollout"][0]
    assert "scored again by regrade/form: " in why(row, "words")


def test_corrected_answers_are_found_by_their_problem(workspace: Path) -> None:
    file = Path("data/two_step/prompts.parquet")
    rows = read_table(file, "prompts")
    write_table(with_ids(rows.drop("id").with_columns(answer=pl.lit("987654")), "prompts"), file, "prompts")
    main("same")
    found = json.loads(Path("metrics/regrade/same.json").read_text())
    assert found["lowered"] > 0.3 and found["raised"] == 0.0 and found["reward"] < 0.3, "no answer is right now"


def test_a_table_without_the_prompts_is_named(workspace: Path) -> None:
    rows = read_table("data/two_step/prompts.parquet", "prompts")
    write_table(rows.filter(split="test"), Path("data/two_step/prompts.parquet"), "prompts")
    with pytest.raises(
        DataError, match=r"the prompt \w+ of rollouts/online/grpo is not in data/two_step/prompts.parquet"
    ):
        _ = regrade_stage("form").judged


def test_a_run_that_stored_no_text_is_refused(workspace: Path) -> None:
    file = Path("rollouts/online/grpo/run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "rollouts": "none"}))
    params = check(RegradeRun, {**NAMES, "reward": {"format": 1.0}}, where="regrade.runs.a")
    with pytest.raises(DataError, match="needs all rollouts, but these were stored with rollouts: none"):
        _ = RegradeStage("a", params).judged
