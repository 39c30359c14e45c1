"""Run a stage in the current workspace, with the second device unless torch has CUDA: python PATH/stage.py sft main.

The workspace's own code runs, and what is here is none of it: a stage takes no code of tests into its digest.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.second_device import build

    if build.why_not() is None:
        import tests.second_device.device  # noqa: F401

    sys.path[0] = str(Path.cwd())
    sys.argv = sys.argv[1:]
    runpy.run_module(f"stages.{sys.argv[0]}", run_name="__main__", alter_sys=True)
