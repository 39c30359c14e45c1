"""Environments of other tools: what is said where they are missing, what a failed program says, and how it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.isolation.environment import ChildError, answer_of, fault
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.report.lm_eval import lm_eval_lines
from tests.pipeline.report import workspace
from tests.workspace import ROOT, environment


def child(folder: Path, body: str) -> Path:
    file = folder / "child.py"
    file.write_text(f"import os, sys, time\ndef answer(asked):\n    {body}\n", encoding="utf-8")
    return file


def test_another_version_is_refused() -> None:
    assert fault(sys.executable, ["pytest"], "pytest", "0.1") == (
        f"{sys.executable} has pytest {pytest.__version__}, but posttrain supports 0.1"
    )


def test_a_program_answers_or_says_why_not(tmp_path: Path) -> None:
    file = child(tmp_path, "print('noise'); return {'twice': 2 * asked['n'], 'path': sys.path}")
    found = answer_of(sys.executable, file, {"n": 3}, environment())
    assert found["twice"] == 6 and str(ROOT) not in found["path"], "nothing of ours can be imported"
    with pytest.raises(ChildError, match=r"status 1\n(.|\n)*ValueError: no such thing"):
        answer_of(sys.executable, child(tmp_path, "raise ValueError('no such thing')"), {}, environment())


def test_a_program_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    file = child(tmp_path, "open(asked['pid'], 'w').write(str(os.getpid())); time.sleep(600)")
    holder = (
        "import os, sys; from pathlib import Path; from posttrain.isolation.environment import answer_of; "
        f"answer_of(sys.executable, Path({str(file)!r}), {{'pid': {str(tmp_path / 'pid')!r}}}, os.environ)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], cwd=ROOT, env=environment())
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_figures_of_lm_eval_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for run, figures in {"a": {"t.acc": 0.5, "t.acc_stderr": 0.1}, "b": {"t.acc": 0.25, "u.em,strict": 1.0}}.items():
        workspace.put_json(Path("results/lm_eval") / run / "metrics.json", figures)
    settings = {"evaluate": {"lm_eval": {run: {"policy": f"sft/{run}"} for run in "abc"}}}
    assert lm_eval_lines(settings, []).splitlines() == [
        "lm-eval          a (sft/a)  b (sft/b)",
        "-------------------------------------",
        "t.acc        0.500 ± 0.100      0.250",
        "u.em,strict              -      1.000",
    ]
    assert lm_eval_lines(settings, ["lm_eval/a", "lm_eval/b"]) == ""


def test_results_of_lm_eval_have_a_folder_of_their_own() -> None:
    found = {stage.name: stage.output("x") for stage in STAGES if stage.makes == "results"}
    assert found == {"evaluate": "x", "evaluate_runs": "x", "lm_eval": "lm_eval/x"}
