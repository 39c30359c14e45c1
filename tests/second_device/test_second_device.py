"""Run the tests of this folder in a process that has the second device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.second_device import build
from tests.workspace import ROOT


@pytest.mark.slow
@pytest.mark.skipif(build.why_not() is not None, reason=str(build.why_not()))
def test_the_code_for_a_gpu_runs_on_the_second_device() -> None:
    plugin = ["-p", "tests.second_device.device", "-p", "no:cacheprovider", "-p", "no:xdist"]
    chosen = ["-m", "not slow", "-q", "tests/second_device"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *plugin, *chosen]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
