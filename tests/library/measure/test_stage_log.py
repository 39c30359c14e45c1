"""The log of a stage: what it printed, with timestamps, for the last runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.isolation.library import library_environment
from posttrain.measure.stage_log import RUNS, log_path

STAGE = """
import sys
from posttrain.measure.stage_log import start_log

start_log("online@grpo")
print("run", sys.argv[1])
from posttrain.measure.terminal import Coded

sys.stderr.write(Coded("\\r\\x1b[2Kstep 1"))
sys.stderr.write(Coded("\\r\\x1b[2Kstep 2\\n"))
print("a line in", end=" ")
print("two parts")
assert sys.stdout.fileno() == 1 and not sys.stdout.isatty()
raise ValueError("the end")
"""


def run_stage(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STAGE, str(number)]
    return subprocess.run(command, cwd=folder, env=library_environment(), capture_output=True, text=True, check=False)


def test_a_log_has_every_line_with_its_time_and_the_traceback(tmp_path: Path) -> None:
    done = run_stage(tmp_path, 1)
    assert done.stdout == "run 1\na line in two parts\n" and "\x1b[2Kstep 1" in done.stderr

    lines = (tmp_path / log_path("online@grpo")).read_text(encoding="utf-8").splitlines()
    texts = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", line) for line in lines]
    assert all(texts), lines
    found = [text[1] for text in texts if text]
    assert found[:3] == ["run 1", "step 2", "a line in two parts"], "a redrawn line counts once"
    assert found[3].startswith("Traceback") and found[-1] == "ValueError: the end"


@pytest.mark.slow
def test_the_logs_of_the_last_runs_are_kept(tmp_path: Path) -> None:
    for number in range(RUNS + 2):
        run_stage(tmp_path, number)
    logs = [tmp_path / f"logs/online@grpo.log{end}" for end in ["", *(f".{age}" for age in range(1, RUNS))]]
    runs = [log.read_text(encoding="utf-8").splitlines()[0].split()[-1] for log in logs]
    assert runs == [str(number) for number in reversed(range(2, RUNS + 2))]
    assert len(list((tmp_path / "logs").iterdir())) == RUNS


def test_a_folder_that_cannot_be_written_does_not_stop_the_stage(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    assert run_stage(tmp_path, 1).stdout == "run 1\na line in two parts\n"
