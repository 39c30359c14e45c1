"""The tables of reasoning-gym: equal rows from every process; tasks that do not repeat or score 0 are left out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from posttrain.pipeline.tables.sources import file_tables
from tests.workspace import ROOT

PYTHON = ROOT / ".reasoning-gym" / "bin" / "python"
SCRIPT = ROOT / "recipes" / "reasoning_gym" / "tables.py"
TASKS = {"chain_sum": {"weight": 3, "max_digits": 2}, "gcd": {}}
installed = pytest.mark.skipif(not PYTHON.is_file(), reason="reasoning-gym is not installed: make test-reasoning-gym")
pytestmark = [pytest.mark.gym, installed]


def made(out: Path, tasks: object, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(PYTHON), str(SCRIPT), str(out), json.dumps(tasks), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rows_repeat_are_mixed_by_weight_and_become_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path("my/gym/prompts.jsonl"), Path("other/prompts.jsonl")]
    for file in files:
        done = made(file, TASKS, "--rows", "80", "--seed", "3")
        assert done.returncode == 0, done.stderr
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    of = [row["info"]["dataset"] for row in rows]
    assert of.count("gcd") == 20 and 50 <= of.count("chain_sum") <= 60, "equal prompts are kept once"
    Path("params.yaml").write_text("data: {files: {gym: {path: my/gym, prompts: prompts.jsonl}}}\n")
    prompts = file_tables("gym")["prompts"]
    assert prompts.height == len(rows) and set(prompts["answer"]) == {row["answer"] for row in rows}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("word_ladder", "not repeatable: two processes generate different rows from one seed"),
        ("rush_hour", "its own answers score 0, not 1"),
        ("spell_backward", "its answers are no plain numbers"),
    ],
)
def test_a_task_that_cannot_be_used_is_left_out(name: str, why: str, tmp_path: Path) -> None:
    done = made(tmp_path / "prompts.jsonl", {name: {}}, "--rows", "20")
    assert done.returncode == 1 and f"error: {name}: {why}" in done.stderr
    assert not (tmp_path / "prompts.jsonl").exists()
