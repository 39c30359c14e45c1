"""`python -m posttrain.rewards test` in a process that cannot import the pipeline or one of its packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.library.test_imports import BLOCKED, ROOT

WITHOUT_THE_PIPELINE = f"""
import runpy, sys
import transformers  # it asks whether packages are there
for name in {BLOCKED!r}:
    sys.modules[name] = None
runpy.run_module("posttrain.rewards", run_name="__main__", alter_sys=True)
"""
OWN = """
from posttrain.rewards import Params, rule


class Options(Params):
    most: int = 3


@rule(Options)
def short(rollout, options):
    if rollout.text == "fault":
        raise RuntimeError("the reward met a fault")
    return float(len(rollout.text) <= options.most)
"""


def tried(folder: Path, rows: Sequence[object], *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "custom").mkdir(exist_ok=True)
    (folder / "custom/my_rewards.py").write_text(OWN, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    command = [sys.executable, "-c", WITHOUT_THE_PIPELINE, "test", *words, "--table", "rows.jsonl"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def row(completion: str) -> dict[str, str]:
    return {"prompt": "say it", "completion": completion, "answer": "a"}


def test_an_own_reward_scores_rows_and_shows_where_it_fails(tmp_path: Path) -> None:
    done = tried(tmp_path, [row("ab"), row("abcd")], "my_rewards:short")
    assert done.returncode == 0, done.stderr
    assert "2 rows: 2 ok; mean 0.500 of 2 scores" in done.stdout
    failed = tried(tmp_path, [row("abcd"), row("fault"), 7], "my_rewards:short", "--options", "most=4", "-n", "2")
    assert failed.returncode == 1
    assert "row 1    ok               1.000" in failed.stdout, failed.stdout
    assert "custom/my_rewards.py" in failed.stdout and "RuntimeError: the reward met a fault" in failed.stdout
    assert "1 of 2 rows failed, the first is row 2" in failed.stderr


def test_what_cannot_be_read_is_an_error_in_a_line(tmp_path: Path) -> None:
    for rows, words, error in (
        ([row("a"), 7], ["format"], "error: rows.jsonl: row 2: it is not a JSON object. Fix the file"),
        ([row("a")], ["my_rewards:long"], "custom/my_rewards.py has no 'long'"),
        ([row("a")], ["format", "-n", "0"], "error: reward test: -n = 0. Give the number of rows, 1 or more"),
        ([], ["format"], "it has no completions"),
    ):
        done = tried(tmp_path, rows, *words)
        assert done.returncode == 1 and error in done.stderr and "Traceback" not in done.stderr, done.stderr
