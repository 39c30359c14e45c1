"""How each stage used its time: a file per stage, a line at its end, and a table of all stages.

Times differ between runs, so the files are not DVC outputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.files import write_json
from posttrain.late_imports import is_late
from posttrain.measure.counts import count, counts
from posttrain.measure.phases import CLOCK, NAMES, OTHER
from posttrain.measure.record import read_record, record_path
from posttrain.measure.text_table import text_table

FOLDER: Final = Path("timings")
SHOWN: Final = 0.005
"""A phase below this share of the time is omitted from the line at a stage's end."""

TOKENS: Final = tuple(f"{name}_tokens" for name in NAMES)
"""The token counts of phases, which are shown as rates."""


def timings_path(stage: str) -> Path:
    """Return the timings file of a stage: `online@grpo` -> timings/online/grpo.json."""
    return FOLDER / f"{stage.replace('@', '/')}.json"


def report_timings(stage: str) -> None:
    """Write the stage's timings to a file, and print a line on stderr."""
    spent = CLOCK.seconds()
    total = sum(spent.values())
    timings = {
        "stage": stage,
        "record": _record(stage),
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
        "total": round(total, 3),
        "cpu": round(time.process_time(), 1),  # of this process only, not of one that was killed before
        "starts": CLOCK.starts,
        "peak_mb": round(peak_mb(), 1),
        **({"device_peak_mb": round(on_device, 1)} if (on_device := device_peak_mb()) else {}),
        **({"counts": counts()} if counts() else {}),
    }
    with contextlib.suppress(OSError):  # the stage is done; a full disk must not make it fail here
        write_json(timings_path(stage), timings)
    parts = (
        f"{name} {spent[name]:.1f} s{_rate(name, spent)}" for name in (*NAMES, OTHER) if spent[name] >= SHOWN * total
    )
    starts = f" in {CLOCK.starts} starts" if CLOCK.starts > 1 else ""
    counted = "".join(f"; {name} {value:,.6g}" for name, value in counts().items() if name not in TOKENS)
    gpu = f", {timings['device_peak_mb']:.0f} MB on the GPU" if "device_peak_mb" in timings else ""
    line = f"{stage}: {total:.1f} s{starts}: {', '.join(parts)}; {timings['peak_mb']:.0f} MB{gpu}{counted}"
    print(line, file=sys.stderr)


def of_this_run(stage: str) -> dict[str, Any]:
    """Return the timings of the run whose record is in the workspace; empty if they belong to another run.

    DVC and git restore outputs and records of other runs, but not timings.
    """
    timings = read_record(timings_path(stage))
    return timings if timings.get("record") and timings["record"] == _record(stage) else {}


def _record(stage: str) -> str:
    """Return the digest of the stage's record; empty if there is none."""
    file = record_path(stage)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def _rate(name: str, spent: Mapping[str, float]) -> str:
    """Return the tokens per second of a phase that counts its tokens."""
    tokens = counts().get(f"{name}_tokens")
    return f" ({tokens / spent[name]:,.0f} tokens/s)" if tokens else ""


def restore_timings(state: object) -> None:
    """Add the seconds and counts in a checkpoint, so that a resumed run includes them."""
    if isinstance(state, Mapping) and isinstance(state.get("seconds"), dict) and isinstance(state.get("starts"), int):
        CLOCK.add(state["seconds"], state["starts"])
        if isinstance(state.get("counts"), dict):
            count(state["counts"])


def timings_state() -> dict[str, Any]:
    """Return the current seconds and counts for a checkpoint."""
    return {"seconds": CLOCK.seconds(), "starts": CLOCK.starts, "counts": counts()}


def peak_mb() -> float:
    """Return the peak resident memory of this process."""
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def device_peak_mb() -> float:
    """Return the peak memory of tensors on the GPU; 0 without a GPU."""
    torch: Any = sys.modules.get("torch")  # a process without torch has used no GPU
    if torch is None or is_late("torch") or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0.0
    return float(torch.cuda.max_memory_allocated()) / 2**20


def timings_table(folder: Path = FOLDER, stages: Collection[str] | None = None) -> str:
    """Return the seconds of every stage, or of the given stages, with the share of each phase, longest first."""
    all_timings = [read_timings(file) for file in folder.rglob("*.json")]
    timings = [timing for timing in all_timings if stages is None or timing["stage"] in stages]
    timings.sort(key=lambda timing: -float(timing["total"]))
    if not timings:
        fix = "Run a stage; each stage writes its timings when it ends"
        raise PipelineError(what="no timings found", where=str(folder), fix=fix)
    names = (*NAMES, OTHER)
    every: dict[str, Any] = {
        "stage": "all",
        "seconds": {name: sum(timing["seconds"][name] for timing in timings) for name in names},
        "total": sum(timing["total"] for timing in timings),
        "peak_mb": max(timing["peak_mb"] for timing in timings),
    }
    rows = [["stage", "seconds", *names, "peak MB", ""]]
    for row in [*timings, every]:
        shares = (f"{row['seconds'][name] / max(row['total'], 1e-9):.0%}" for name in names)
        gpu = f"{row['device_peak_mb']:.0f} MB on the GPU" if "device_peak_mb" in row else ""
        starts = f"in {row['starts']} starts" if row.get("starts", 1) > 1 else ""
        notes = "  ".join(filter(None, (gpu, starts)))
        rows.append([row["stage"], f"{row['total']:.1f}", *shares, f"{row['peak_mb']:.0f}", notes])
    return "\n".join(text_table(rows, left=(0, len(rows[0]) - 1)))


def read_timings(file: Path) -> dict[str, Any]:
    """Return the timings that a stage wrote."""
    try:
        timings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        {name: float(timings["seconds"][name]) for name in (*NAMES, OTHER)}
        float(timings["total"]), float(timings["peak_mb"]), str(timings["stage"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PipelineError(what=f"cannot be read ({error!r:.100})", where=str(file), fix="Delete it") from error
    return timings
