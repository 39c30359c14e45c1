"""The heading of a page: commit, date, machine, seeds, times, and changes in params.yaml since the commit.

It differs between equal runs, so the stage's own page, whose bytes must be equal, does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from posttrain.measure.record import FOLDER as RECORDS
from posttrain.measure.record import read_record
from posttrain.measure.timings import FOLDER as TIMINGS
from posttrain.measure.timings import of_this_run
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.lock.graph import NOT_SET, changed
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.report.markup import Markup, element, figures
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import flattened

PAGE_SO_FAR = "logs/report.html"
"""The page that `posttrain show report` writes."""
MACHINE = ("platform", "device", "precision")
MOST_CHANGES = 12


def heading(now: datetime | None = None) -> Markup:
    """Return the line as HTML."""
    records, written = _read(RECORDS), _read(TIMINGS)
    timings = [known for one in written if (known := of_this_run(str(one.get("stage"))))]
    seconds = sum(float(one.get("total", 0)) for one in timings)
    longest = sorted(timings, key=lambda one: -float(one.get("total", 0)))[:3]
    times = ", ".join(f"{one['stage']} {_time(one['total'])}" for one in longest)
    facts = {
        "commit": _commit(),
        "date": (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": _several(" ".join(str(one.get(key, "")) for key in MACHINE) for one in records if "device" in one),
        "seeds": _several(str(one["seed"]) for one in records if "seed" in one),
        "torch": _several(one.get("versions", {}).get("torch", "") for one in records),
        "times": f"{_time(seconds)} in all ({times}, ...)" if timings else "",
        "params.yaml since the commit": "; ".join(_changes()),
    }
    shown = figures({name: value for name, value in facts.items() if value})
    return element("div", shown, id="made")


def _read(folder: Path) -> list[dict[str, Any]]:
    """Return the records in a folder. One that another process is writing is left out."""
    return [record for file in sorted(folder.rglob("*.json")) if (record := read_record(file))]


def _several(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _time(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _commit() -> str:
    """Return the commit, and whether tracked files differ from it."""
    commit = git_or_none("rev-parse", "--short", "HEAD")
    if commit is None:
        return "none"
    edited = git_or_none("status", "--porcelain", "--untracked-files=no")
    return commit.decode().strip() + (", changed" if edited and edited.strip() else ", clean")


def _changes() -> list[str]:
    """Return the keys of params.yaml that differ from the commit, with both values, as text."""
    lines = [f"{key}: {old} → {new}" for key, old, new in changes()]
    more = len(lines) - MOST_CHANGES
    return [*lines[:MOST_CHANGES], f"{more} more"] if more > 0 else lines


def changes(root: Path = Path()) -> list[tuple[str, object, object]]:
    """Return the keys of params.yaml that differ from the commit, with both values."""
    committed = git_or_none("show", f"HEAD:./{PARAMS_FILE}", root=root)
    if committed is None:
        return []
    before = flattened(YAML(typ="safe", pure=True).load(committed))
    after = flattened(read_yaml(root / PARAMS_FILE))
    return [(".".join(keys), old, new) for keys, old, new in changed(before, after, NOT_SET)]
