"""What each stage's time went into: a file per stage that no stage depends on, a line at its end, and the table of all.

The figures differ from run to run, so they are no outputs of DVC's: those are the same bytes in every clone.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.measure.phases import CLOCK, NAMES, OTHER
from posttrain.workspace import write_json

FOLDER: Final = Path("timings")
SHOWN: Final = 0.005
"""A phase with less than this share of the time is not worth a place in the line at a stage's end."""


def timings_path(stage: str) -> Path:
    """Where a stage's timings lie: `online@grpo` -> timings/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


def print_timings(stage: str) -> None:
    """Write down where the time went, and say so in a line on stderr."""
    spent = CLOCK.seconds()
    total = sum(spent.values())
    found = {
        "stage": stage,
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
        "total": round(total, 3),
        "cpu": round(time.process_time(), 1),  # of this process: without the time before a kill
        "lives": CLOCK.lives,
        "peak_mb": round(peak_mb(), 1),
    }
    with contextlib.suppress(OSError):  # the stage is done, and a full disk must not undo it for the sake of this
        write_json(timings_path(stage), found)
    parts = (f"{name} {spent[name]:.1f} s" for name in (*NAMES, OTHER) if spent[name] >= SHOWN * total)
    lives = f" in {CLOCK.lives} lives" if CLOCK.lives > 1 else ""
    print(f"{stage}: {total:.1f} s{lives}: {', '.join(parts)}; {found['peak_mb']:.0f} MB", file=sys.stderr)


def resumed(kept: object) -> None:
    """Count the seconds that a checkpoint kept: the run goes on, and they were spent on it."""
    if isinstance(kept, Mapping) and isinstance(kept.get("seconds"), dict) and isinstance(kept.get("lives"), int):
        CLOCK.add(kept["seconds"], kept["lives"])


def kept() -> dict[str, Any]:
    """What a checkpoint keeps of the time up to it."""
    return {"seconds": CLOCK.seconds(), "lives": CLOCK.lives}


def peak_mb() -> float:
    """The largest resident size of this process."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def timings_table(folder: Path = FOLDER) -> str:
    """Every stage's seconds and the share of each phase, the longest stage first."""
    found = sorted((read_timings(file) for file in folder.rglob("*.json")), key=lambda one: -float(one["total"]))
    if not found:
        fix = "Run a stage: each writes its timings at its end"
        raise PipelineError(what="there are no timings", where=str(folder), fix=fix)
    names = (*NAMES, OTHER)
    every: dict[str, Any] = {
        "stage": "all",
        "seconds": {name: sum(one["seconds"][name] for one in found) for name in names},
        "total": sum(one["total"] for one in found),
        "peak_mb": max(one["peak_mb"] for one in found),
    }
    lines = [f"{'stage':<28}{'seconds':>9}" + "".join(f"{name:>10}" for name in names) + f"{'peak MB':>9}"]
    for one in [*found, every]:
        shares = "".join(f"{one['seconds'][name] / max(one['total'], 1e-9):>10.0%}" for name in names)
        lives = f"  in {one['lives']} lives" if one.get("lives", 1) > 1 else ""
        lines.append(f"{one['stage']:<28}{one['total']:>9.1f}{shares}{one['peak_mb']:>9.0f}{lives}")
    return "\n".join(lines)


def read_timings(file: Path) -> dict[str, Any]:
    """The timings that a stage wrote."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        {name: float(found["seconds"][name]) for name in (*NAMES, OTHER)}
        float(found["total"]), float(found["peak_mb"]), str(found["stage"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PipelineError(what=f"cannot be read ({error!r:.100})", where=str(file), fix="Delete it") from error
    return found
