"""Rollouts of other libraries as a table of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.data.columns import canonical, digest, from_rows
from posttrain.errors import DataError, ParamsError
from posttrain.files import read_finite_json
from posttrain.online.rollout_log import SUMMARY
from posttrain.pipeline.outside.rollouts import training_rollouts as module
from posttrain.pipeline.outside.rollouts.sampled import Sampled
from posttrain.pipeline.outside.rollouts.training_rollouts import Rollouts
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.rollout import Score, TokenRow

TURNS = [{"role": "user", "content": "1+1?"}]


def sampled(right: float = 1.0, **more: Any) -> Sampled:
    scores = {"correct": Score(right), "brief": Score(0.5)}
    return Sampled(
        **{"group": "g", "round": 0, "prompt": [("user", "1+1?")], "completion": "2", "scores": scores, **more}
    )


def rollouts(*found: Sampled, **weights: float) -> Rollouts:
    return Rollouts(found, weights, "theirs", "external.rollouts.theirs")


def test_there_must_be_rollouts_and_their_rewards() -> None:
    with pytest.raises(DataError, match="no rollouts were found"):
        rollouts()
    with pytest.raises(ParamsError, match="no rollout has a reward 'corect'; there are brief, correct"):
        rollouts(sampled(), corect=1.0)


def test_totals_count_weights() -> None:
    def total(one: Sampled, **weights: float) -> float | None:
        return rollouts(one, **weights)._total(one)

    assert total(sampled()) == 1.5
    assert total(sampled(weights={"correct": 2.0})) == 2.5
    assert total(sampled(weights={"correct": 2.0}), brief=4.0) == 2.0
    assert total(sampled(scores={})) is None and total(sampled(finish="timeout")) is None
    failed = {"correct": Score(0.0, "error"), "brief": Score(0.5)}
    assert total(sampled(scores=failed)) is None and total(sampled(scores=failed), brief=1.0) == 0.5


def test_scores_of_failed_rollouts_are_failures() -> None:
    def scores(one: Sampled) -> dict[str, Score]:
        return rollouts(one)._scores(one)

    assert scores(sampled()) == {"correct": Score(1.0), "brief": Score(0.5)}
    assert scores(sampled(finish="timeout")) == {name: Score(0.0, "timeout") for name in ("brief", "correct")}
    assert scores(sampled(scores={"a": Score(float("nan"))})) == {"a": Score(0.0, "error")}


def test_the_curve_has_the_means_of_each_round() -> None:
    found = rollouts(
        sampled(1.0, length=4, finish="length"), sampled(0.0, length=2, finish="stop"),
        sampled(round=1, finish="error"), sampled(round=1),
    )  # fmt: skip
    assert found.curve() == [
        {"step": 0, "rollouts": 2, "reward": 1.0, "length": 3.0, "reward_brief": 0.5, "reward_correct": 0.5,
         "failed": 0.0, "truncated": 0.5},
        {"step": 1, "rollouts": 2, "reward": 1.5, "reward_brief": 0.5, "reward_correct": 1.0, "failed": 0.5,
         "truncated": 0.0},
    ]  # fmt: skip


def test_rows_have_their_prompts_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"prompt": TURNS, "answer": "2", "problem": "sum", "split": "train", "task": "", "info": "{}"}
    table = Path("data/mine/prompts.parquet")
    write_table(from_rows([row], "prompts"), table, "prompts")
    name = read_table(table, "prompts")["id"][0]
    assert module._prompts(table) == {canonical(TURNS): (name, "sum")} and module._prompts(None) == {}
    tokens = TokenRow([1, 2], [3, 4], [True, True])
    found = rollouts(sampled(tokens=(tokens, [-0.5, -0.25]), length=2, version="v1", info={"a": 1}), sampled(0.0))
    made = found._row(1, found._rollouts[0], module._prompts(table))
    assert (made["prompt_id"], made["problem"], made["draw"], made["sample"], made["logp"]) == (
        name,
        "sum",
        0,
        1,
        -0.75,
    )
    assert (made["completion_ids"], made["version"], made["info"]) == ([3, 4], "v1", '{"a":1}')
    unknown = found._row(0, found._rollouts[1], {})
    assert (unknown["prompt_id"], unknown["problem"]) == (digest(canonical(TURNS)), "1+1?")
    assert unknown["logp"] is None and unknown["version"] == "theirs round 0"


def test_a_folder_is_written_with_its_summary(tmp_path: Path) -> None:
    tokens = (TokenRow([1, 2], [3, 4], [True, True]), [-0.5, -0.25])
    rollouts(*(sampled(tokens=tokens, length=2) for _ in range(2))).write(tmp_path / "full", None, "v")
    rollouts(sampled(), sampled()).write(tmp_path / "texts", None, "v")
    full, texts = (read_finite_json(tmp_path / name / SUMMARY) for name in ("full", "texts"))
    assert (full["rollouts"], full["rows"], full["group_size"]) == ("full", 2, 2)
    assert texts["rollouts"] == "without tokens"
    assert read_table(tmp_path / "full/part-00000.parquet", "training_rollouts").height == 2
