"""A quarter of an hour on a GPU: what decides where the time of a step goes. `make gpu` runs it.

python -m benchmarks.gpu                      all parts, in 15 minutes
python -m benchmarks.gpu --parts 0 A          only these
python -m benchmarks.gpu --parts C --again    measure once more what is in the file
python -m benchmarks.gpu --small --device cpu  try the command without a GPU: its figures mean nothing

Each figure goes into benchmarks/results/gpu.json at once, and is printed next to the value that decides between two
explanations. A stopped run continues. Each part has a process and a time limit of its own, so a part that fails does
not stop the others.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.gpu_parts.__main__ import LEFT, PARTS, SKIPPED
from benchmarks.gpu_parts.figures import PARTLY, read

FILE = RESULTS / "gpu.json"
TRIAL = RESULTS / "gpu-trial.json"
"""The figures of `--small`, which say nothing about speed."""
START_S = 20.0
"""Seconds beyond a part's own for its imports and its last figure."""
ENDINGS = {0: "done", SKIPPED: "skipped", LEFT: "its time was over"}
Start = Callable[[str, float], int]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="only these parts")
    parser.add_argument("--again", action="store_true", help="measure what the file has once more")
    parser.add_argument("--minutes", type=float, default=15.0, help="no part begins later, and none ends later")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can run, in a file of their own")
    parser.add_argument("--file", type=Path, help="another file for the figures")
    options = parser.parse_args(arguments)
    file = options.file or (TRIAL if options.small else FILE)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: no CUDA device here. Run it where there is one; to try it: --small --device cpu", file=sys.stderr)
        return 1
    if options.device == "cpu" and not options.small:
        print("error: --device cpu needs --small: the full sizes take a CPU days", file=sys.stderr)
        return 1
    more = ["--device", options.device] + ["--small"] * options.small + ["--again"] * options.again

    def start(part: str, seconds: float) -> int:
        return in_a_process(part, [*more, "--file", str(file)], seconds)

    endings = run_parts(options.parts, start, time.monotonic() + 60 * options.minutes)
    print("\n".join(summary(file, endings)), flush=True)
    return int(any(code not in (0, SKIPPED) for code in endings.values()) or len(endings) < len(options.parts))


def run_parts(parts: list[str], start: Start, end: float) -> dict[str, int]:
    """Run parts in their order until the time is over. Return part -> exit code."""
    codes: dict[str, int] = {}
    for part in (name for name in PARTS if name in parts):
        left = end - time.monotonic()
        if left <= 0:
            break
        seconds = min(PARTS[part].seconds, left)
        print(f"{part}: {PARTS[part].what}, at most {seconds:.0f} s", flush=True)
        codes[part] = start(part, seconds)
    return codes


def in_a_process(part: str, options: list[str], seconds: float) -> int:
    """Run a part in a process of its own. Kill it if it does not end by itself."""
    command = [sys.executable, "-m", "benchmarks.gpu_parts", part, "--seconds", f"{seconds:.1f}", *options]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(seconds + START_S)
    except subprocess.TimeoutExpired:
        print(f"{part}: ended after {seconds + START_S:.0f} s; what it has measured is kept", flush=True)
        return -signal.SIGKILL
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(file: Path, endings: dict[str, int]) -> list[str]:
    """Return a line for each part: how it ended, how many figures it has, and which failed."""
    found, lines = read(file), [f"figures: {file}"]
    for part, code in endings.items():
        figures = found.get(part, {})
        whole = [name for name, figure in figures.items() if not any(key in figure for key in PARTLY)]
        failed = [name for name, figure in figures.items() if "failed" in figure]
        skipped = [name for name, figure in figures.items() if "skipped" in figure]
        counts = f"{len(whole)} figures, {len(skipped)} skipped, {len(failed)} failed"
        ending = ENDINGS.get(code, f"ended with status {code}")
        lines.append(f"{part}: {ending}; {counts}{': ' if failed else ''}{', '.join(failed)}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
