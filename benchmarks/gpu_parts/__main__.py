"""One part in this process: python -m benchmarks.gpu_parts PART --file FILE --seconds S [--device cpu --small]."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_parts.figures import Figures, MissingError


class Part(NamedTuple):
    """A module of this folder, and its limit."""

    module: str
    seconds: float
    what: str


PARTS = {
    "0": Part("ceilings", 15, "what the device reaches at best"),
    "A": Part("kernels", 45, "norms, passes over logits and attention alone"),
    "B": Part("profiled", 60, "steps of SFT and DPO by kernel"),
    "C": Part("variants", 120, "steps with one thing changed"),
    "D": Part("decoding", 90, "a round of GRPO, and decoding steps"),
    "F": Part("long_rows", 60, "8 billion weights, and long rows"),
    "G": Part("trl_tuned", 30, "TRL near its defaults and tuned"),
    "E": Part("vllm_server", 150, "a server of vLLM"),
}
"""In the order in which they run. vLLM is last, because it needs gigabytes of packages."""
SKIPPED, LEFT = 3, 4
"""Exit codes: something that the part needs is missing, and figures are left because the time was over."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_parts", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--file", type=Path, required=True, help="the JSON file of all parts' figures")
    parser.add_argument("--seconds", type=float, required=True, help="no figure begins later")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can run")
    parser.add_argument("--again", action="store_true", help="measure what the file has once more")
    options = parser.parse_args(arguments)
    from benchmarks.gpu_parts.sizes import FULL, SMALL

    figures = Figures(options.file, options.part, options.seconds, again=options.again)
    run = import_module(f"benchmarks.gpu_parts.{PARTS[options.part].module}").run
    try:
        run(figures, options.device, (SMALL if options.small else FULL).on(options.device))
    except MissingError as error:
        print(f"{options.part}: skipped: {error}", flush=True)
        return SKIPPED
    if figures.left:
        print(f"{options.part}: no time was left for {', '.join(figures.left)}", flush=True)
        return LEFT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
