"""`posttrain checkpoints`. What its actions say of each checkpoint is in `test_actions.py`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from posttrain.measure.provenance import hardware
from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.runs.stage_checkpoints import ACCEPTED, ASKED, Checkpoints
from posttrain.train.checkpoint import CheckpointData

MAKER = {"files": {}, "packages": {}, "cpu": hardware()}


def save(run_name: str) -> Path:
    """Leave a checkpoint of a run that was refused because its code had changed."""
    kept = Checkpoints(f"sft@{run_name}", {}, [], maker=MAKER)
    kept.save(CheckpointData(3, {"weight": torch.zeros(2)}, {}))
    kept.wait()
    (kept.folder / ASKED).write_text(json.dumps(MAKER))
    free = kept.folder.with_name(f"free-{run_name}")
    shutil.copytree(kept.folder, free)
    shutil.rmtree(kept.folder)  # this process holds its lock until it ends
    return free


def test_checkpoints_are_listed_resumed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "DVC_STAGE", "POSTTRAIN_ROOT"):
        monkeypatch.delenv(name, raising=False)
    Path("params.yaml").write_text("sft: {runs: {main: {start: base/a, data: b/chat}}}\n")
    assert run(parse(["checkpoints"])) == "no checkpoints"
    folder = save("main")
    line, total = run(parse(["checkpoints"])).splitlines()
    assert line.startswith("sft@main") and " step 3 " in line and total.endswith(" in all")
    said = run(parse(["checkpoints", "resume", "sft@main"]))
    assert "sft@main" in said and (folder / ACCEPTED).is_file() != (folder / ASKED).is_file()
    (folder / ASKED).write_text(json.dumps(MAKER))
    assert run(parse(["checkpoints", "restart", "sft@main"])).endswith("; its next run starts from step 0")
    assert not folder.exists()
