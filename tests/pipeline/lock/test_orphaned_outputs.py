"""What is left of runs that are no longer in params.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.lock.lock_file import read_entries
from posttrain.pipeline.lock.orphaned_outputs import _outputs, describe_leftovers, leftovers, remove_leftovers
from posttrain.pipeline.params.stage_table import STAGES

NOTHING = "nothing is left of removed runs: every entry of dvc.lock belongs to a run of params.yaml"


def entry(*outs: str) -> dict[str, object]:
    return {"cmd": "c", "outs": [{"path": path} for path in outs]}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of SFT is in params.yaml, another was removed; so was the evaluation of a policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for file in ("models/sft/main/a", "models/sft/old/a", "results/old/metrics.json", "checkpoints/sft/gone/1/step-1"):
        Path(file).parent.mkdir(parents=True)
        Path(file).touch()
    Path("params.yaml").write_text("sft: {runs: {main: {start: base/a}}}\n")
    stages = {
        "sft@main": entry("models/sft/main"),
        "sft@old": entry("models/sft/old", "plots/sft/old.csv"),
        "evaluate@old": entry("results/old/metrics.json"),
        "sft@lost": entry("models/sft/lost"),
        "theirs": entry("models/sft/old"),
    }
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))


def test_the_leftovers_of_removed_runs() -> None:
    found = leftovers({"sft": {"runs": {"main": {}}}})
    assert found == {
        "sft@old": ["models/sft/old"],
        "evaluate@old": ["results/old/metrics.json"],
        "sft@lost": [],
        "sft@gone": ["checkpoints/sft/gone"],
    }
    assert "sft@old" not in leftovers({"sft": {"runs": {"main": {}, "old": {}}}})


def test_they_are_listed_then_removed() -> None:
    assert describe_leftovers().splitlines() == [
        "left of sft@old: models/sft/old",
        "left of evaluate@old: results/old/metrics.json",
        "left of sft@lost: its entry in dvc.lock",
        "left of sft@gone: checkpoints/sft/gone",
    ]
    assert remove_leftovers().splitlines()[0] == "removed sft@old: models/sft/old"
    assert Path("models/sft/main/a").is_file()
    assert not any(Path(path).exists() for path in ("models/sft/old", "results/old/metrics.json"))
    assert list(read_entries()) == ["sft@main", "theirs"]


def test_nothing_is_left() -> None:
    Path("dvc.lock").unlink()
    Path("checkpoints/sft/gone/1/step-1").unlink()
    Path("checkpoints/sft/gone/1").rmdir()
    assert describe_leftovers() == remove_leftovers() == NOTHING


def test_the_outputs_of_each_kind_of_stage() -> None:
    stages = {stage.name: stage for stage in STAGES}
    assert _outputs(stages["data_files"], "a") == ["records/data_files/a.json", "data/a", "metrics/data/a.json"]
    assert _outputs(stages["evaluate"], "a") == [
        "records/evaluate/a.json", "results/a", "records/completions/a.json", "completions/a",
    ]  # fmt: skip
    assert _outputs(stages["regrade"], "a") == [
        "records/regrade/a.json", "metrics/regrade/a.json", "metrics/regrade/a.parquet", "plots/regrade/a.csv",
    ]  # fmt: skip
    assert _outputs(stages["lm_eval"], "a") == ["records/lm_eval/a.json", "results/lm_eval/a"]
    assert _outputs(stages["evaluate_ratings"], "a") == [
        "records/evaluate_ratings/a.json", "metrics/ratings/a.json", "metrics/ratings/a.parquet",
    ]  # fmt: skip
    assert _outputs(stages["online"], "a") == [
        "records/online/a.json", "models/online/a", "metrics/online/a.json", "plots/online/a.csv", "rollouts/online/a",
    ]  # fmt: skip
