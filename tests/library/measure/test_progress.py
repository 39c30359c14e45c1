"""The last line of a piece of work says whether all of it was done."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.measure.progress import Progress, progress_text, read_progress


@pytest.mark.parametrize(("done", "shown"), [(4, "work: 4/4 steps"), (3, "work: 3/4 steps")])
def test_work_that_stops_before_its_end_says_so(done: int, shown: str) -> None:
    stream = io.StringIO()
    progress = Progress("work", 4, stream=stream)
    for _ in range(done):
        progress.advance()
    progress.close({"loss": 0.5})
    line = stream.getvalue().splitlines()[-1]
    assert line.startswith(shown) and "took 0:00" in line and line.endswith("loss 0.5")
    assert ("ended early" in line) == (done < 4)
    assert "left" not in line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_line_fits_the_terminal_and_has_whole_figures(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    progress = Progress("online@a_run_with_a_long_name", 1_234_567, stream=stream)
    progress.advance(400_000)
    progress.close({"reward": 0.51234, "length": 123.25, "entropy": 0.25, "kl_k3": 0.0625, "accuracy": 0.75})
    line = stream.getvalue().removeprefix("\r\033[2K").removesuffix("\n")
    assert len(line) < columns and "e+" not in line
    assert ("accuracy 0.75" in line) == (columns == 200)


WORK = """
import time
from pathlib import Path
from posttrain.measure.phases import CLOCK
from posttrain.measure.progress import Progress, keep_progress
Path("logs").mkdir()
keep_progress("online@grpo")
CLOCK.enter("generate")
progress = Progress("online@grpo", 100)
progress.advance(1, {"reward": 0.25})
time.sleep(1.1)
progress.advance(1, {"reward": 0.5, "odd": float("nan")})
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("terminal", [True, False], ids=["pty", "pipe"])
def test_progress_is_in_a_file_while_it_goes_on(tmp_path: Path, *, terminal: bool) -> None:
    """On a real terminal the line is redrawn and reaches no log; in a pipe it comes every ten seconds."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=tmp_path, env=environment, stdout=writer, stderr=writer
    ) as process:
        os.close(writer)
        said = b""
        while b"ready" not in said:
            part = os.read(reader, 4096)
            assert part, "it has ended"
            said += part
        state = read_progress(tmp_path / "logs/online@grpo.progress.json", since=0)
        process.kill()
    os.close(reader)
    assert state is not None and state["step"] == 2 and state["steps"] == 100
    assert state["phase"] == "generate" and state["start"] < state["time"]
    assert state["metrics"] == {"reward": 0.5}, "JSON has no nan"
    assert progress_text(state).startswith("2/100 steps  ") and progress_text(state).endswith("left  reward 0.5")
    assert (b"\r" in said.replace(b"\r\n", b"")) == terminal
    assert not list(tmp_path.glob("logs/.*")), "whole, and nothing is left next to it"
