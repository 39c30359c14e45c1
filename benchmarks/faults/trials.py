"""The faults that are kept in the ledger, trial by trial: edits, flipped bits, power cuts, and kills of flows."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from benchmarks.faults import ledger
from benchmarks.faults.cuts import Cuts, why_not
from benchmarks.faults.edits import Edits
from benchmarks.faults.flips import Flips
from benchmarks.faults.flow_kills import Flows
from benchmarks.faults.lies import Lies
from benchmarks.faults.service_kills import Services


class Trials(Protocol):
    """What tries the faults of one part."""

    def __init__(self, folder: Path) -> None: ...

    def trial(self, seed: int) -> ledger.Row:
        """Try one fault."""
        ...


TRIALS: dict[str, tuple[str, type[Trials], int]] = {
    "edits": ("Inputs edited during a run", Edits, 4),
    "flips": ("Flipped bits and emptied files", Flips, 1),
    "cuts": ("Power cuts", Cuts, 4),
    "flows": ("Flows killed", Flows, 2),
    "services": ("Sweeps, deployments and workers killed", Services, 10),
    "lies": ("Readers asked after each action", Lies, 3),
}
"""Part -> (its title, what tries it, by how much rarer than a kill it is tried)."""
ABOUT = {
    "edits": """A short pipeline with the library's stage runner, tables and checkpoints; an edit comes at a random
moment of `dvc repro`. Wrong: dvc.lock names other inputs than were used, a refusal does not name the input, or a
restored input does not let the next run resume.""",
    "flips": """One bit is flipped, or one file emptied, in DVC's cache or in an output. A stage reads it, then
`posttrain repair verify`, `repair` and `dvc repro` run. Wrong: the stage does not notice, `verify` does not find it,
or bytes differ at the end.""",
    "cuts": """An ext4 image is shut down (`EXT4_IOC_SHUTDOWN`, without flushing its log) during `dvc repro` or up
to 12 s later, and mounted with a new boot id; then `posttrain repair` and `dvc repro` run. Wrong: bytes differ, or
a stage runs again although `posttrain repair sync` had ended.""",
    "flows": """`python -m flows.pipeline` on the short pipeline, with one stage stale, gets SIGKILL while that
stage runs, or between its end and its record in dvc.lock; then the flow runs again. Wrong: success although the
stage was killed, a second run that fails, outputs or dvc.lock that differ, anything that `dvc status` or `posttrain
verify` names, lost finished training, or a process left over.""",
    "lies": """Eight actions of users in random order on two runs: edits, `dvc repro` of all or a part, commits,
branches, merges and rebases, stash, `dvc checkout`, `commit -f` and `gc`, removed and copied outputs, a sweep, a kill.
After each action `status`, `show results`, `compare` of the workspace and of every branch and experiment, `why`,
`promote --dry-run` and `repair verify` are asked. A program outside of the workspace writes down what was really
trained and evaluated. Wrong: an answer that is not true and names nothing. Every sixth sequence trains by `sft`, the
others by a short command.""",
    "services": """The same for a sweep of two experiments, for `python -m flows.deploy serve` during a run, and for
`python -m flows.workers` during a stage; then the same command is started again. Also wrong: an experiment whose
dvc.lock differs.""",
}


def tried(part: str, folder: Path, count: int, until: float = math.inf, first: int = 0) -> dict[str, Any]:
    """Try a part from a first seed, in proportion to so many kills, or until that time; what came of each fault."""
    _, kind, rarer = TRIALS[part]
    if part == "cuts" and (reason := why_not()):
        print(f"cuts: left out: {reason}", flush=True)
        return {}
    folder.mkdir()
    found: dict[str, Any] = {}
    for row in ledger.fill(part, range(first, first + max(count // rarer, 1)), kind(folder).trial, until):
        fault = found.setdefault(row["fault"], {"tried": 0, "outcomes": Counter(), "wrong": []})
        fault["tried"] += 1
        fault["outcomes"][row["outcome"]] += 1
        fault["wrong"] += [row["wrong"]] if row["wrong"] else []
    return found


def tables(results: dict[str, dict[str, Any]]) -> list[str]:
    """Their part of the document."""
    lines = []
    for part, (title, _, _) in TRIALS.items():
        rows = results.get(part, {})
        if not rows:
            continue
        commit = results.get("commits", {}).get(part)
        lines += [f"## {title}\n", ABOUT[part] + (f" Measured at commit {commit}." if commit else ""), ""]
        lines += ["| fault | tried | wrong | what happened |", "|---|---:|---:|---|"]
        for name, row in rows.items():
            how = "; ".join(f"{outcome}: {number}" for outcome, number in Counter(row["outcomes"]).most_common())
            lines.append(f"| {name} | {row['tried']} | {len(row['wrong'])} | {how} |")
        number, wrong = sum(row["tried"] for row in rows.values()), sum(len(row["wrong"]) for row in rows.values())
        lines += [f"| **all** | **{number}** | **{wrong}** | |", ""]
    return lines
