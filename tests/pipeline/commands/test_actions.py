"""`posttrain checkpoints` compares what lies there with params.yaml, the inputs and the code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import PosttrainError
from posttrain.pipeline.commands.checkpoints.actions import clean, list_checkpoints
from tests.workspace import ROOT, environment

STOPPED = """
import torch
from pathlib import Path
from posttrain.pipeline.runs.typed import load_settings
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.train.checkpoint import CheckpointData
from posttrain.train.loop import checkpoint_settings, RUNS_ON
for stage, group in (("base@tiny", "base.scratch"), ("sft@main", "sft.runs")):
    settings = checkpoint_settings(load_settings(group, stage.partition("@")[2]))
    kept = Checkpoints(stage, {**settings, RUNS_ON: "cpu"}, [Path("data/two_step/chat.parquet")])
    for step in (1, 2, 3):
        kept.save(CheckpointData(step, {"weight": torch.zeros(4)}, {}))
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which two stages have stopped at step 3, in a process of their own: its code is recorded."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copyfile(ROOT / "recipes/smoke.yaml", folder / "params.yaml")
    (folder / "data/two_step").mkdir(parents=True)
    (folder / "data/two_step/chat.parquet").write_text("chat")
    env = environment() | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", STOPPED], cwd=folder, env=env, check=True)
    return folder


@pytest.fixture
def workspace(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with the working folder set to it."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path


def states() -> dict[str, str]:
    """Stage -> what is said of its checkpoints."""
    lines = [line.split(maxsplit=7) for line in list_checkpoints().splitlines()[:-1]]
    return {words[0]: words[7].removeprefix("ago").strip() for words in lines}


@pytest.mark.slow
def test_each_checkpoint_is_listed_with_what_the_next_run_does_with_it(workspace: Path) -> None:
    assert states() == {"base_scratch@tiny": "resumable", "sft@main": "resumable"}
    assert " step 3 " in list_checkpoints()
    params = Path("params.yaml").read_text()
    Path("params.yaml").write_text(params.replace("epochs: 3.0", "epochs: 4.0"))
    assert states() == {"base_scratch@tiny": "resumable", "sft@main": "other parameters: epochs 3.0, now 4.0"}
    Path("params.yaml").write_text(params.replace("    tiny:\n", "    small:\n"))
    assert states()["base@tiny"] == "no such run in params.yaml"
    Path("params.yaml").write_text(params)
    Path("data/two_step/chat.parquet").write_text("other")
    assert states()["sft@main"] == "other inputs: data/two_step/chat.parquet"
    Path("data/two_step/chat.parquet").write_text("chat")
    for state in Path("checkpoints/sft").rglob("state.json"):
        made = json.loads(state.read_text())
        made["maker"]["files"]["posttrain/errors.py"] = "another file"
        state.write_text(json.dumps(made))
    assert states()["sft@main"] == "made with other code or packages: posttrain/errors.py changed"
    next(Path("checkpoints/sft").rglob("run.json")).write_text('{"stage": "sft@main"}')
    assert states()["sft@main"] == "made by another version of posttrain"


def test_clean_removes_only_checkpoints_that_no_run_resumes_from(workspace: Path) -> None:
    assert clean("unused").startswith("nothing to remove")
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("epochs: 3.0", "epochs: 4.0"))
    assert clean("unused").startswith("removed step 3 of sft@main (")
    assert list(states()) == ["base_scratch@tiny"]
    assert clean("all").startswith("removed step 3 of base_scratch@tiny (")
    assert list_checkpoints() == "no checkpoints"


@pytest.mark.parametrize("broken", ["<<<<<<< HEAD\n", "epochs: three"])
def test_clean_removes_nothing_while_params_are_wrong(workspace: Path, broken: str) -> None:
    params = Path("params.yaml")
    text = params.read_text()
    params.write_text(text.replace("epochs: 3.0", broken) if broken in text or "epochs" in broken else broken + text)
    with pytest.raises(PosttrainError):
        clean("unused")
    params.write_text(text)
    assert states().keys() == {"base_scratch@tiny", "sft@main"}


def test_the_newest_two_are_kept_and_say_what_made_them(workspace: Path) -> None:
    steps = sorted(Path("checkpoints/sft").rglob("step-*"))
    assert [step.name for step in steps] == ["step-00000002", "step-00000003"]
    state = json.loads((steps[-1] / "state.json").read_text())
    assert state["format"] == 3 and state["maker"]["packages"].keys() >= {"python", "torch", "transformers"}
    assert {"posttrain/train/checkpoint.py", "stages/__init__.py"} <= state["maker"]["files"].keys()
