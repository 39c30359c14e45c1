"""What `posttrain track` reads, and what it refuses: no tracker is needed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import track
from posttrain.pipeline.tables.store import write_table
from posttrain.pipeline.track.runs import completions, curve, figures, named_runs, tracked
from posttrain.pipeline.workspace import plot_path
from tests.architecture.sources import home, modules, own_imports
from tests.pipeline.tables.samples import table_of


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", []),
        ("step,lo", []),  # the header is being written
        ("step,loss\n", []),
        ("step,loss\n0,1.5\n1,", [{"step": 0, "loss": 1.5}]),  # a row is
        ("step,loss\n0,1.5\n1,2.5\n2,1", [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 2.5}]),
        ("step,loss,new\n0,nan,\n1,inf,7\n", [{"step": 0}, {"step": 1, "new": 7}]),
        ("step,loss\n0,1.5\n1,2.5,7\n", [{"step": 0, "loss": 1.5}]),  # written anew between two reads
    ],
)
def test_a_curve_is_read_while_it_is_written(tmp_path: Path, text: str, rows: list[dict[str, float]]) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(text)
    assert curve(file) == rows
    assert curve(tmp_path / "none.csv") == []


def test_a_run_is_named_by_its_model_its_stage_or_its_label(finished: Path) -> None:
    assert named_runs(["online/grpo", "online@grpo", "grpo"]) == ["online/grpo"]
    assert named_runs([])[0] == "base/tiny"
    with pytest.raises(ParamsError, match="Did you mean 'grpo'"):
        named_runs(["grpp"])
    (finished / "plots/online/gone.csv").write_text("step,loss\n0,1\n")
    assert named_runs(["online/gone"]) == ["online/gone"]  # params.yaml no longer has it
    assert tracked("online/gone", {"step": 0.0}).settings == {}


def test_a_run_has_its_settings_figures_and_completions(finished: Path) -> None:
    first = curve(plot_path("online/grpo"))[0]
    run = tracked("online/grpo", first)
    assert run.settings["kl"] == {"beta": 0.02} and run.label == f"online/grpo-{run.id[:6]}"
    assert tracked("online/grpo", {**first, "loss": 9.0}).id != run.id == tracked("online/grpo", first).id
    found = figures("online/grpo")
    assert found["two_step/prompts/score"] == 0.9 and found["train/steps"] == 60 and "train/algorithm" not in found
    ((name, rows),) = completions("online/grpo", 5)
    assert (
        name == "completions/two_step/prompts" and len(rows) == 5 and {"completion", "reward", "status"} <= set(rows[0])
    )


def test_completions_of_training_are_those_of_the_last_round(finished: Path) -> None:
    table = table_of("training_rollouts", {2: {"round": 1}, 3: {"round": 1}})
    write_table(table, finished / "rollouts/sft/main/part-00000.parquet", "training_rollouts")
    rows = dict(completions("sft/main", 5))["completions/train"]
    assert [row["round"] for row in rows] == [1, 1]


def test_the_trackers_of_the_environment_variable_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_TRACK", "mlflow,wandb")
    parser = argparse.ArgumentParser()
    track.add_arguments(parser)
    assert parser.parse_args([]).to == "mlflow,wandb"


@pytest.mark.slow
def test_no_run_can_load_what_tracks_it() -> None:
    """So that no digest of a run's code changes with it."""
    users = {
        module for module in modules() for other in own_imports(module) if home(other) == "posttrain.pipeline.track"
    }
    assert {home(module) for module in users} == {
        "posttrain.pipeline.commands",
        "posttrain.pipeline.track",
        "posttrain.plugins",
    }
    texts = {
        module for module, file in modules().items() if "posttrain.pipeline.track" in file.read_text(encoding="utf-8")
    }
    assert texts == users, "a text that names a module counts as an import"
