"""Where the settings of a run go: python -m benchmarks.settings_path RUN, in a copy of a workspace that has run.

Runs the stage `online RUN` and follows its settings object from call to call. A call in the same room stays; a call
into a room that imports more than the caller's climbs.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks import ROOT
from benchmarks.structure import level, room

SETTINGS = "PolicyRun"
LIBRARY = tuple(str(ROOT / name) for name in ("posttrain", "stages"))


def follow(calls: set[tuple[str, str]]) -> None:
    """Add the caller's and the called module of every call from now on whose function holds the settings."""

    def called(frame: FrameType, event: str, _: object) -> None:
        if (
            event != "call"
            or not _own(frame)
            or SETTINGS not in {type(held).__name__ for held in frame.f_locals.values()}
        ):
            return
        caller = frame.f_back
        while caller and not _own(caller):
            caller = caller.f_back
        if caller:
            calls.add((_module(caller), _module(frame)))

    sys.setprofile(called)


def moves(calls: set[tuple[str, str]]) -> str:
    """Return how many calls stay, climb and descend, those that climb, and the modules that hold the settings."""
    found: Counter[str] = Counter()
    climbs = []
    for caller, target in sorted(calls):
        here, there = room(caller), room(target)
        kind = "stay" if here == there else "climb" if level(there) > level(here) else "descend"
        found[kind] += 1
        climbs += [f"climbs: {caller} -> {target}"] * (kind == "climb")
    modules = {target for _, target in calls}
    return "\n".join([*climbs, f"{dict(found)}, in {len(modules)} modules"])


def _own(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename.startswith(LIBRARY) and not code.co_name.startswith("<")


def _module(frame: FrameType) -> str:
    return ".".join(Path(frame.f_code.co_filename).relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def main() -> None:
    """Run the stage, which ends its process itself."""
    calls: set[tuple[str, str]] = set()
    end = os._exit

    def report(status: int) -> NoReturn:
        sys.setprofile(None)
        print(moves(calls), flush=True)
        end(status)

    os._exit = report
    sys.argv = ["stages/online.py", sys.argv[1]]
    follow(calls)
    runpy.run_module("stages.online", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
