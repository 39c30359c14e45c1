"""Speed and memory compared with TRL and with loops written by hand.

python -m benchmarks.speed                       everything that is not measured yet, then docs/reports/performance.md
python -m benchmarks.speed --case sft/T -n 1     one workload on one model, nothing kept
python -m benchmarks.speed --page                write the page from the results that are there
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.speed.cases import COMPARED, SCALING, TINY
from benchmarks.speed.run import alternate, median, median_ratio
from docs.make.performance import write_page

BF16 = ("posttrain_bf16", "trl_bf16")
ONCE = ("trl_default", *BF16)
"""Measured only in the first turn: the comparison is about the same mathematics in float32."""
SIDES = ("posttrain", "bound", "trl")
EXTRA = {"sft/T": ("trl_packing", "trl_default", *BF16), "sft/S": ("trl_packing", *BF16)} | {
    f"{name}/T": ("trl_default",) for name in ("reward", "dpo", "grpo", "rloo")
}


def sides_of(case: str) -> tuple[str, ...]:
    """Return the sides of a comparison."""
    return SIDES + EXTRA.get(case, ())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--case", choices=[*COMPARED, *TINY], help="only this one; printed, not kept")
    parser.add_argument("--sides", nargs="+", help="only these sides, posttrain among them")
    parser.add_argument("-n", "--rounds", type=int, default=5, help="alternations")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results first")
    options = parser.parse_args(arguments)
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            show(options.case, options.sides or sides_of(options.case), options.rounds, Path(folder))
        return 0
    if options.fresh:
        for case in (*COMPARED, *(case for cases in SCALING.values() for case in cases)):
            (RESULTS / f"{case.replace('/', '-')}.json").unlink(missing_ok=True)
    if not options.page:
        for turn in range(1, options.rounds + 1):
            for case in COMPARED:
                alternate(case, [side for side in sides_of(case) if turn == 1 or side not in ONCE], turn)
        for cases in SCALING.values():
            for turn in range(1, min(options.rounds, 3) + 1):
                for case in cases:
                    alternate(case, ("posttrain",), turn)
    write_page()
    return 0


def show(case: str, sides: Sequence[str], rounds: int, folder: Path) -> None:
    """One comparison, on the terminal."""
    reports = alternate(case, sides, rounds, folder)
    for side in sides:
        rate, peak = (median(reports[side], value) for value in (lambda r: r.rate, lambda r: r.peak_mb))
        ratio = median_ratio(reports, side)
        print(f"{case} {side}: {rate:.2f}/s, {peak:.0f} MB, posttrain is {ratio:.2f} times as fast")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
