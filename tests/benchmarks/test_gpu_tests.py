"""The steps of `make test-gpu` go on where they stopped, and end in time; what they measure needs a GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.gpu_tests import Result, StepError, run_steps


def test_a_stopped_run_goes_on_and_a_failed_step_is_tried_again(tmp_path: Path) -> None:
    file, ran = tmp_path / "gpu.json", list[str]()

    def good(left: float) -> Result:
        ran.append("good")
        return {"left": left > 0}

    def bad(left: float) -> Result:
        ran.append("bad")
        raise StepError("no")

    end = time.monotonic() + 1000
    assert run_steps({"good": good, "bad": bad, "last": good}, file, end) == 1
    assert ran == ["good", "bad", "good"]
    assert run_steps({"good": good, "bad": good, "last": good}, file, end) == 0
    assert ran == ["good", "bad", "good", "good"]
    assert set(json.loads(file.read_text())) == {"good", "bad", "last"}
    assert run_steps({"later": good}, file, time.monotonic() - 1) == 1, "no step begins after the end"
