"""One side of one workload in this process: python -m benchmarks.speed.side CASE SIDE, the report on the last line."""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks.speed.cases import case_of


def main(arguments: list[str]) -> int:
    name, side = arguments
    workload = importlib.import_module(f"benchmarks.speed.{name.split('/')[0]}")
    if side not in workload.SIDES:
        print(json.dumps({"absent": f"{name} has no side '{side}'; there are {', '.join(workload.SIDES)}"}))
        return 1
    report = workload.SIDES[side](case_of(name))
    print(report.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
