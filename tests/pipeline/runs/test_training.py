"""The inputs of a training stage, and where it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.runs.sft import SftRun
from posttrain.pipeline.runs.training import RunInputs, TrainingStage, training_stage
from posttrain.pipeline.workspace import checkpoint_path
from posttrain.train.loop import checkpoint_settings


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingStage[Any]:
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "POSTTRAIN_ROOT"):
        monkeypatch.delenv(name, raising=False)
    Path("params.yaml").write_text(
        "sft: {runs: {main: {start: base/a, data: mine/chat, epochs: 2.0}}}\n"
        "preference: {runs: {dpo: {algorithm: dpo, start: sft/main, data: mine/pairs}}}\n"
    )
    return training_stage("sft", "main")


def test_a_stage_has_its_settings(stage: TrainingStage[Any]) -> None:
    assert (stage.name, stage.section, stage.params) == ("sft@main", "sft.runs.main", load(SftRun, "sft.runs.main"))
    assert training_stage("preference", "dpo").params.algorithm == "dpo"
    assert stage.saved == Path("models/sft/main")
    assert stage.recorder is not None and type(stage.recorder).__name__ == "CsvRecorder"


def test_what_it_reads_is_recorded(stage: TrainingStage[Any]) -> None:
    reads = RunInputs("sft@main", stage.params)
    Path("models/base/a").mkdir(parents=True)
    assert reads.start("base/a") == Path("models/base/a")
    assert reads.table("mine/chat") == Path("data/mine/chat.parquet")
    assert reads.optional_table("none") is None and reads.optional_table("b/chat") == Path("data/b/chat.parquet")
    assert reads.reads(Path("x")) == Path("x")
    assert [str(path) for path in reads.inputs] == [
        "models/base/a",
        "data/mine/chat.parquet",
        "data/b/chat.parquet",
        "x",
    ]


def test_checkpoints_belong_to_its_settings(stage: TrainingStage[Any]) -> None:
    models: Any = SimpleNamespace(runtime=SimpleNamespace(device=torch.device("cpu")))
    found = stage.checkpoint_settings(models)
    assert {key: found[key] for key in checkpoint_settings(stage.params)} == checkpoint_settings(stage.params)
    assert "cpu" in found.values()
    kept = stage.checkpoints(models)
    assert kept.folder.parent == checkpoint_path("sft@main")
