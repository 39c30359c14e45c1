"""Whatever is killed, the next run ends with the bytes of one that was not killed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from benchmarks.faults import dvc_kills
from benchmarks.faults.kills import STAGES, UNCHECKPOINTED, Tally, prepared, torture
from benchmarks.faults.processes import Server

QUICK = ("sft main", "sft lora")


def assert_survived(tally: Tally, kills: int) -> None:
    assert not tally.faults, "\n".join(tally.faults[:3])
    assert tally.killed == kills and tally.compared > 0
    if tally.stage.split()[0] not in UNCHECKPOINTED and kills > 10:
        assert tally.resumed > 0, "no attempt resumed from a checkpoint, so none was tested"


@pytest.mark.slow
@pytest.mark.parametrize("stage", QUICK)
def test_a_few_kills(stage_server: Server, smoke_workspace: Path, tmp_path: Path, stage: str) -> None:
    assert_survived(torture(stage_server, prepared(smoke_workspace, tmp_path / "w", stage), stage, 3, seed=1), 3)


@pytest.mark.parametrize("run", ["grpo", pytest.param("dapo", marks=pytest.mark.slow)])
def test_every_prompt_is_in_the_rollouts_once(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path, run: str
) -> None:
    """A killed round is sampled again: its prompts must not be missing from the table, nor be there twice."""
    workspace = prepared(smoke_workspace, tmp_path / "w", f"online {run}")
    assert_survived(torture(stage_server, workspace, f"online {run}", 4, seed=6), 4)
    rows = pl.read_parquet(workspace / f"rollouts/online/{run}/*.parquet")
    draws = rows["draw"].max() + 1  # type: ignore[operator]
    expected = [(draw, sample) for draw in range(draws) for sample in range(4)]
    assert rows.select("draw", "sample").rows() == expected and draws >= 3 * 4
    assert rows.group_by("draw").agg(pl.col("prompt_id").n_unique())["prompt_id"].max() == 1
    assert rows["round"].unique().to_list() == [0, 1, 2]
    if run == "grpo":  # every group is trained on: two steps of each round in the first of its two epochs
        assert sorted(rows["step"].unique()) == [0, 1, 4, 5, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_twenty_kills(stage_server: Server, smoke_workspace: Path, tmp_path: Path, stage: str) -> None:
    assert_survived(torture(stage_server, prepared(smoke_workspace, tmp_path / "w", stage), stage, 20, seed=20), 20)


@pytest.mark.slow
def test_dvc_killed_while_it_commits_has_lost_nothing(smoke_workspace: Path, tmp_path: Path) -> None:
    tally = dvc_kills.torture_dvc(smoke_workspace, tmp_path, "sft@main", [dvc_kills.COMMIT], seed=1)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.killed == 1


@pytest.mark.slow
def test_dvc_killed_while_it_restores_has_lost_nothing(smoke_workspace: Path, tmp_path: Path) -> None:
    tally = dvc_kills.torture_restore(smoke_workspace, tmp_path, 2, seed=1)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.killed == tally.compared == 2


@pytest.mark.slow
@pytest.mark.parametrize("stage", dvc_kills.STAGES)
def test_dvc_killed_at_every_kind_of_moment(smoke_workspace: Path, tmp_path: Path, stage: str) -> None:
    tally = dvc_kills.torture_dvc(smoke_workspace, tmp_path, stage, list(dvc_kills.MOMENTS), seed=2)
    assert not tally.faults, "\n".join(tally.faults)
