"""The last line of a piece of work says whether all of it was done."""

from __future__ import annotations

import io

import pytest

from posttrain.measure.progress import Progress


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
