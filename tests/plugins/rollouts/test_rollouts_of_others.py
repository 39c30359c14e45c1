"""Rollouts of TRL and prime-rl: files that these libraries wrote, as tables of ours.

The folder `others` has what TRL 1.16 and the episodes of verifiers 0.4 wrote (write_trl.py, write_prime_rl.py there).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import DataError, ParamsError
from posttrain.pipeline.outside.rollouts.training_rollouts import Rollouts
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.plugins.rollouts import prime_rl_traces, trl_completions

OTHERS = Path(__file__).parent / "others"


def rows_of(found: Any, tmp_path: Path, weights: dict[str, float] | None = None, prompts: Path | None = None) -> Any:
    rollouts = Rollouts(list(found), weights or {}, "external/theirs", "external.rollouts.theirs")
    rollouts.write(tmp_path / "written", prompts, "")
    return read_table(tmp_path / "written/part-00000.parquet", "training_rollouts"), rollouts


def test_a_batch_of_trl_that_was_logged_twice_is_read_once(tmp_path: Path) -> None:
    table, _ = rows_of(trl_completions.read(OTHERS / "trl"), tmp_path)
    files = [pl.read_parquet(file) for file in sorted((OTHERS / "trl").glob("*.parquet"))]
    assert [file["step"][0] for file in files] == [1, 2, 3, 4], "TRL wrote one for each step"
    assert files[0].drop("step").equals(files[1].drop("step")), "of batches that it trains on for two"
    given = pl.concat([files[0], files[2]])
    assert table["completion"].to_list() == [turns[0]["content"] for turns in given["completion"].to_list()]
    assert table["round"].to_list() == given["step"].to_list() and table["advantage"].equals(given["advantage"])
    assert table["sample"].to_list() == [0, 1, 2, 3] * 4 and table["draw"].n_unique() == 4
    assert [json.loads(text) for text in table["info"]] == [{"gold": gold} for gold in given["gold"]]
    assert table["logps"].null_count() == table.height and table["finish"].null_count() == table.height


def test_the_total_of_trl_is_the_weighted_sum_of_the_functions_that_judged_a_row(tmp_path: Path) -> None:
    table, rollouts = rows_of(trl_completions.read(OTHERS / "trl"), tmp_path, {"brief": 0.5, "right": 2.0})
    files = [pl.read_parquet(file) for file in sorted((OTHERS / "trl").glob("*.parquet"))]
    given = pl.concat([files[0], files[2]])
    assert given["right"].null_count(), "a function that returned None"
    expected = 0.5 * given["brief"] + 2.0 * given["right"].fill_null(0)
    assert table["reward"].to_list() == pytest.approx(expected.to_list())
    scores = [{score["name"]: score["value"] for score in row} for row in table["scores"].to_list()]
    assert [score.get("right") for score in scores] == given["right"].to_list()
    first, second = rollouts.curve()
    assert first["step"] == 1 and first["reward"] == pytest.approx(expected.head(8).mean())
    assert second["reward_right"] == pytest.approx(files[2]["right"].mean())
    with pytest.raises(ParamsError, match="no rollout has a reward 'rigth'; there are brief, right"):
        rows_of(trl_completions.read(OTHERS / "trl"), tmp_path, {"rigth": 1.0})


def test_prompts_of_a_table_are_found_by_their_text(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "what is 1+1?"}]
    row = {"split": "train", "problem": "one", "prompt": turns, "answer": "2", "info": "{}", "task": ""}
    prompts = from_rows([row], "prompts")
    write_table(prompts, tmp_path / "prompts.parquet", "prompts")
    table, _ = rows_of(trl_completions.read(OTHERS / "trl"), tmp_path, prompts=tmp_path / "prompts.parquet")
    known = table.filter(pl.col("problem") == "one")
    assert known.height == 4 and set(known["prompt_id"]) == {prompts["id"][0]}


def test_traces_of_prime_rl_have_tokens_groups_and_how_they_ended(tmp_path: Path) -> None:
    table, rollouts = rows_of(prime_rl_traces.read(OTHERS / "prime_rl"), tmp_path)
    rows = table.to_dicts()
    said = [row["completion"] for row in rows]
    assert said == ["It is 2", "It is 3", "It is 4", "It is long", "It is 2!", "two", "It is 3!", ""], (
        "without the evaluation"
    )
    assert [row["step"] for row in rows] == [1, 1, None, None, None, None, None, None], "the effective ones"
    assert [row["finish"] for row in rows] == ["stop", "stop", "stop", "length", "stop", "timeout", "stop", "error"]
    assert [row["reward"] for row in rows] == pytest.approx([1.1, 0.1, 0.1, 0.1, 1.1, None, 1.1, None])
    assert {score["status"] for score in rows[5]["scores"]} == {"timeout"}
    assert (rows[0]["prompt_ids"], rows[0]["completion_ids"], rows[0]["logps"]) == ([3, 4, 5, 2], [6, 7], [-0.5, -0.25])
    assert rows[0]["advantage"] == 0.5 and rows[0]["version"] == "step 0" and rows[0]["task"] == "sums"
    assert json.loads(rows[0]["sampling"])["temperature"] == 0.8
    assert rows[7]["prompt_ids"] is None and rows[7]["problem"] == "What is 2+1?", "failed before its first message"
    assert [row["sample"] for row in rows] == [0, 1] * 4
    assert [point["failed"] for point in rollouts.curve()] == [0, 0.5]
    assert rollouts.curve()[0]["truncated"] == 0.25


def test_groups_of_several_sizes_are_draws_of_one(tmp_path: Path) -> None:
    found = list(trl_completions.read(OTHERS / "trl"))[1:]
    table, _ = rows_of(found, tmp_path)
    assert set(table["sample"]) == {0} and table["draw"].n_unique() == table.height == 15


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def without_advantage(file: Path) -> None:
    pl.read_parquet(file).drop("advantage").write_parquet(file)


def odd_prompt(file: Path) -> None:
    frame = pl.read_parquet(file)
    turns = [[{"role": None, "content": "a"}] if n == 2 else row for n, row in enumerate(frame["prompt"].to_list())]
    frame.with_columns(pl.Series("prompt", turns)).write_parquet(file)


BROKEN = {
    cut: "completions_00003.parquet: it cannot be read",
    without_advantage: "completions_00003.parquet: it has no column advantage; it has step, prompt",
    odd_prompt: "completions_00003.parquet, row 3: .*role",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_what_cannot_be_read_of_trl_is_named_with_file_and_row(damage: Any, tmp_path: Path) -> None:
    shutil.copytree(OTHERS / "trl", tmp_path / "trl")
    damage(tmp_path / "trl/completions_00003.parquet")
    with pytest.raises(DataError, match=BROKEN[damage]):
        list(trl_completions.read(tmp_path / "trl"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("no json", "traces.jsonl, row 5: .*one JSON object per line"),
        ('{"prompt": "a"}', "traces.jsonl, row 5: it is not an episode"),
        ('{"id": "a", "traces": [{"agent": {}, "nodes": [{}]}]}', r"traces.jsonl, row 5: it cannot be read \(KeyError"),
    ],
)
def test_what_cannot_be_read_of_prime_rl_is_named_with_file_and_row(line: str, expected: str, tmp_path: Path) -> None:
    shutil.copytree(OTHERS / "prime_rl", tmp_path / "prime_rl")
    with (tmp_path / "prime_rl/step_2/train/all/traces.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=expected):
        list(prime_rl_traces.read(tmp_path / "prime_rl"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rollouts were found in what the command wrote"):
        rows_of(trl_completions.read(tmp_path), tmp_path)
