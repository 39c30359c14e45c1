"""The last line of a piece of work says whether all of it was done."""

from __future__ import annotations

import io

import pytest

from posttrain.progress import Progress


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
