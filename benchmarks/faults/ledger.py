"""What was tried of the faults that take long, a line each, so that a run that was cut short is resumed."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from typing import Any

from tests.workspace import ROOT

LEDGER = ROOT / ".faults/ledger.jsonl"
CODE = (
    "posttrain/*.py",
    "posttrain/train/checkpoint.py",
    "posttrain/pipeline/runs/*.py",
    "stages/__init__.py",
    "benchmarks/faults/small/*",
)
FLOWS = ("graph", "guard", "pipeline", "process", "record", "run", "server", "slots")
SERVICES = (*FLOWS, "deploy", "plan", "serving", "stage", "sweep", "trials", "workers")
MORE = {
    "flows": tuple(f"flows/{name}.py" for name in FLOWS),
    "services": tuple(f"flows/{name}.py" for name in SERVICES),
    "lies": (
        *(f"posttrain/pipeline/{room}/*.py" for room in ("lock", "compare", "lineage", "report", "commands/promote")),
        "benchmarks/faults/lies.py",
        "benchmarks/faults/asked.py",
        "benchmarks/faults/spy.py",
    ),
}
"""Part -> the code that it tries besides."""
Row = dict[str, Any]


def code(part: str) -> str:
    """A digest of what is tried: the rows of other code do not count."""
    patterns = (*CODE, *MORE.get(part, ()))
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern) if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def rows(part: str) -> list[Row]:
    """What was tried of a part with the present code."""
    if not LEDGER.is_file():
        return []
    found = [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()]
    return [row for row in found if row["part"] == part and row["code"] == code(part)]


def fill(part: str, seeds: range, trial: Callable[[int], Row], until: float = math.inf) -> list[Row]:
    """Try a part with these seeds, or until that time; trials that were made before are not made again."""
    done, digest = {row["seed"] for row in rows(part)}, code(part)
    LEDGER.parent.mkdir(exist_ok=True)
    for seed in seeds:
        if seed not in done and time.time() < until:
            row = {"part": part, "code": digest, "seed": seed, **trial(seed)}
            with LEDGER.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            print(f"{part} {seed}: {row['fault']}: {row['wrong'] or row['outcome']}", flush=True)
    return rows(part)
