"""A small run of several processes: python -m tests.pipeline.processes.counting PROCESSES ROUNDS [FAULT RANK ROUND]

It adds numbers over the processes for so many rounds. FAULT is what happens in the process RANK at ROUND:
`error` an error that a person can fix, `same` the same in all processes, `bug` any other exception, `exit` exit code 3.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from posttrain.distributed import world
from posttrain.errors import DataError, PosttrainError
from posttrain.pipeline.processes.children import follow
from posttrain.pipeline.processes.launch import end, end_failed, explained_deaths, start

follow()


def work(size: int, rounds: int, fault: str = "", rank: str = "0", at: str = "0") -> None:
    """Every process adds its number in every round; the first says how far it is."""
    start("sft@main", size, "cpu")
    for number in range(rounds):
        if number == int(at) and (fault == "same" or world.rank() == int(rank)):
            _fail(fault)
        assert world.gathered(number) == [number] * size
        if world.is_rank_zero():
            Path("round").write_text(str(number))
        time.sleep(0.02)
    world.shutdown()


def _fail(fault: str) -> None:
    if fault in ("error", "same"):
        raise DataError(what="the row is wrong", where="my/data line 3", fix="Fix it")
    if fault == "bug":
        raise ValueError("a defect of the code")
    if fault == "exit":
        os._exit(3)


def main() -> None:
    """Run, and end as a stage does."""
    size, rounds, *fault = sys.argv[1:]
    try:
        with explained_deaths("sft@main"):
            work(int(size), int(rounds), *fault)
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        end_failed(SystemExit(1))
        raise SystemExit(1) from None
    except BaseException as error:
        end_failed(error)
        raise
    end()
    print("done")


if __name__ == "__main__":
    main()
