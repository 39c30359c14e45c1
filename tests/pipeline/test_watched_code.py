"""A stage refuses code that was changed between its import and the stage's first look at it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import ROOT, environment

PROGRAM = """
import sys
from pathlib import Path
import stages
from posttrain.errors import PipelineError
from posttrain.pipeline.lock.graph import Declared
from posttrain.pipeline.lock.inputs import Inputs

with Path(sys.argv[1]).open("a") as file:
    file.write("\\nCHANGED = 1\\n")
deps = ("code/sft/main.json",)
try:
    Inputs("sft@main", Declared("sft@main", "", {}, deps, ()))
except PipelineError as error:
    print(error)
"""


@pytest.mark.parametrize("changed", ["posttrain/pipeline/workspace.py", "stages/sft.py"])
def test_code_that_changes_while_a_stage_starts_is_refused(changed: str, tmp_path: Path) -> None:
    for folder in ("posttrain", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "params.yaml").write_text("sft: {runs: {main: {}}}")
    code = tmp_path / "code/sft/main.json"
    code.parent.mkdir(parents=True)
    code.write_text("{}")
    command = [sys.executable, "-c", PROGRAM, changed]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), check=True, capture_output=True, text=True)
    assert f"{changed}: it was changed while the stage was starting" in done.stdout


def test_the_first_run_by_hand_in_a_copied_workspace_is_no_failure(tmp_path: Path) -> None:
    """Its settings name the folder that it was copied from: following the move imports DVC before the stage begins."""
    for folder in ("posttrain", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("dvc.yaml", "constraints.txt"):
        shutil.copyfile(ROOT / file, tmp_path / file)
    (tmp_path / "custom").mkdir()
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").touch()
    (tmp_path / ".dvc/config.local").write_text("[core]\n    site_cache_dir = /elsewhere/.dvc/tmp/site\n")
    (tmp_path / "params.yaml").write_text("format: 2\ndata: {tasks: {sums: {task: sums, prompts: 20}}}")
    command = [sys.executable, "-m", "posttrain", "run", "data_tasks", "sums"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path) in (tmp_path / ".dvc/config.local").read_text()
