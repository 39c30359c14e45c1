"""What a tracker is told of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.track import runs as module
from posttrain.pipeline.track.runs import completions, curve, figures, is_running, named_runs, result_files, tracked


@pytest.fixture(autouse=True)
def inside(finished: Path) -> None:
    """The workspace of the report's tests."""


def test_runs_are_named_in_any_way() -> None:
    assert named_runs(["online@grpo", "grpo", "online/grpo", "sft"]) == ["online/grpo", "sft/main"]
    assert named_runs([]) == ["base/tiny", "sft/main", "reward/main", "preference/dpo", "online/grpo"]
    with pytest.raises(ParamsError, match="no run is called 'gpro'"):
        named_runs(["gpro"])
    assert is_running("online/grpo") is False


def test_another_training_is_another_run() -> None:
    run = tracked("online/grpo", {"loss": 1.0})
    assert (run.name, run.label, len(run.id)) == ("online/grpo", f"online/grpo-{run.id[:6]}", 12)
    assert run.settings["kl"] == {"beta": 0.02} and run.lineage == {"stage": "online@grpo", "code": ""}
    assert tracked("online/grpo", {"loss": 1.0}).id == run.id != tracked("online/grpo", {"loss": 2.0}).id
    Path("records/online").mkdir(parents=True)
    record = {
        "seed": 3,
        "params": {"params.yaml": {"online.runs.grpo": {"lr": 1}}},
        "inputs": {"code/online/grpo.json": "c"},
    }
    Path("records/online/grpo.json").write_text(json.dumps(record))
    found = tracked("online/grpo", {"loss": 1.0})
    assert found.settings == {"seed": 3, "lr": 1} and found.lineage == record and found.id != run.id


def test_a_curve_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    assert curve(file) == []
    file.write_text("")
    assert curve(file) == []
    file.write_text("step,loss\n0,1.5\n1,nan\n2,\n3,0.")
    assert curve(file) == [{"step": 0.0, "loss": 1.5}, {"step": 1.0}, {"step": 2.0}]
    file.write_text("step,loss\n0,1.5\n1,2,3\n2,1\n")
    assert curve(file) == [{"step": 0.0, "loss": 1.5}]


def test_metrics_of_training_and_evaluations() -> None:
    assert result_files("online/grpo") == {
        "train": Path("metrics/online/grpo.json"), "two_step/prompts": Path("results/grpo/metrics.json"),
    }  # fmt: skip
    found = figures("online/grpo")
    assert (found["train/steps"], found["two_step/prompts/score"]) == (60.0, 0.9) and "train/algorithm" not in found


def test_the_first_completions() -> None:
    ((name, rows),) = completions("online/grpo", 2)
    assert name == "completions/two_step/prompts" and len(rows) == 2 and list(completions("online/grpo", 0)) == []


def test_settings_and_digests() -> None:
    assert module._settings({"sft": {"runs": {"a": {"lr": 1}}}}, "sft.runs.a") == {"lr": 1}
    assert module._settings({}, "sft.runs.a") == {}
    assert module._clean({"a": [1, None]}) == {"a": [1, None]}
    assert module._md5(b"a") == "0cc175b9c0f1b6a831c399e269772661"
