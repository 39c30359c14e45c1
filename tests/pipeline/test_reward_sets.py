"""A run with two reward models: both score, and a change of either makes it stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import ParamsError
from stages import reward_sets
from tests.pipeline.test_adapters import edit
from tests.workspace import dvc

REWARD = {"helpful": {"type": "model", "part": "helpful"}, "safe": {"type": "model", "part": "safe", "weight": 0.5}}


def two_models(params: Any) -> None:
    """Make the smoke pipeline one with a set of two reward models, and a third that no set has."""
    one = {**params["reward"]["runs"]["main"], "demonstrations": "none", "epochs": 0.1}
    params["reward"] = {
        "runs": {"helpful": one, "safe": {**one, "seed": 5}, "other": one},
        "sets": {"both": {"first": "reward/helpful", "second": "reward/safe"}},
    }
    run = {**params["online"]["runs"]["grpo"], "reward_model": "reward/both", "reward": REWARD}
    run["rollout"] = {"rounds": 1, "prompts": 4, "group_size": 4, "minibatches": 1}
    params["online"]["runs"] = {"both": run}
    params["evaluate"]["settings"] |= {"reward_model": "reward/both", "reward": REWARD, "prompts": 8, "samples": 2}
    params["evaluate"]["policies"] = {"both": "online/both"}


def ran(workspace: Path, stage: str = "online@both") -> list[str]:
    """The stages that a repro ran."""
    done = dvc(workspace, "repro", stage)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("Running stage")]
    return [line.split("'")[1] for line in lines]


def test_a_set_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("reward: {sets: {both: {first: base/same, second: reward/same}}}")
    for model in ("base/same", "reward/same"):
        (tmp_path / "models" / model).mkdir(parents=True)
        (tmp_path / "models" / model / "config.json").write_text("{}")
    with pytest.raises(ParamsError, match="two models of the name 'same'"):
        reward_sets.main("both")
    assert [path.name for path in Path("models/reward").iterdir()] == ["same"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_reward_models_score_a_run_and_a_change_of_either_makes_it_stale(own_workspace: Path) -> None:
    edit(own_workspace, two_models)
    assert {"reward@helpful", "reward@safe", "reward_sets@both", "online@both"} <= set(
        ran(own_workspace, "evaluate@both")
    )
    curve = pl.read_csv(own_workspace / "plots/online/both.csv")
    rows = pl.read_parquet(own_workspace / "results/both/rollouts.parquet")
    metrics = json.loads((own_workspace / "results/both/metrics.json").read_text())
    for name in REWARD:
        assert curve[f"reward_{name}"].is_finite().all() and f"reward_{name}" in metrics
    for reward, parts in rows.select("reward", "scores").iter_rows():
        scores = {part["name"]: part["value"] for part in parts}
        assert scores["helpful"] != scores["safe"]
        assert reward == pytest.approx(scores["helpful"] + 0.5 * scores["safe"], abs=1e-4)

    assert ran(own_workspace) == []
    for name in ("helpful", "safe"):
        edit(own_workspace, lambda params, name=name: params["reward"]["runs"][name].update(epochs=0.2))
        again = ran(own_workspace)
        assert again[-3:] == [f"reward@{name}", "reward_sets@both", "online@both"], again
    edit(own_workspace, lambda params: params["reward"]["runs"]["other"].update(epochs=0.2))
    assert dvc(own_workspace, "repro", "reward@other").returncode == 0
    assert ran(own_workspace) == []
