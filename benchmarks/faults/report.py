"""Runs the faults and writes docs/reports/faults.md from what was measured.

    python -m benchmarks.faults.report [PART ...] [--kills N] [--first SEED] [--stage "online grpo"]

Parts: stages, dvc, damage, edits, flips, cuts, flows, services, lies; all of them without an argument. The results of
earlier runs for other parts, or for other stages where one is named, are kept. Of edits, flips, cuts, flows,
services and lies each trial is kept in .faults/ledger.jsonl until the code under test changes, so that an interrupted
run is resumed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.faults import damage, dvc_kills, kills
from benchmarks.faults.processes import Server
from benchmarks.faults.trials import TRIALS, tables, tried
from tests.workspace import ROOT, dvc, make_workspace

RESULTS, PAGE = ROOT / ".faults/results.json", ROOT / "docs/reports/faults.md"
PARTS = ("stages", "dvc", "damage", *TRIALS)
Results = dict[str, dict[str, Any]]

REPAIRED = (
    "`dvc.lock` or `.dvc/tmp/rwlock`, which it writes in place, or a temporary file next to an output. "
    "`posttrain repair` (which `make run` and every flow call first) fixed it."
)
HEAD = """# Faults

Written by `make faults`; do not edit. Everything is killed, edited, damaged or cut off from power at seeded random
moments, then run again. *Wrong* is: other bytes than an undisturbed run, an incomplete or left-over file, an error
of more than one clear line, or unnoticed damage. [reproducibility.md](../reproducibility.md) has the promises.

Machine: {machine}. `python -m benchmarks.faults.report PART --kills N` measures one part again.
"""
STAGES_KILLED, DVC_KILLED, DAMAGE, LIMITS = "Stages killed", "DVC killed", "Damage", "What is not covered"
TITLES = (STAGES_KILLED, DVC_KILLED, DAMAGE, *(title for title, _, _ in TRIALS.values()), LIMITS)
ABOUT = {
    STAGES_KILLED: """Each stage of the smoke pipeline, and a run for each kind of checkpoint state, gets SIGKILL
(with its process group) and is started again, up to eight times. *Resumed* counts starts that found a checkpoint;
tables, samples, evaluations and the report have none.""",
    DVC_KILLED: """`dvc repro` gets SIGKILL, alone or with its stage, and is run again. Outputs and `dvc.lock` are
compared with those of an undisturbed `dvc repro`.""",
    DAMAGE: """Damaged checkpoints and full disks. *Survived*: as the last column says, and the next run ends with the
same bytes.""",
}
NOT_COVERED = """
- Kills come at random and at the moments above, not at every instruction. A rare window may be missed.
- Edits, flips, power cuts and flows use a pipeline of four small stages with the library's stage runner,
  checkpoints and tables; the real stages are killed alone.
- Power cuts are simulated on ext4 over a loop device: no other or network file systems, no disks that acknowledge
  unwritten data.
- No kill was tried on a GPU (checkpoints hold its random state).
- Several hosts in one folder or DVC cache at a time. Workers share a DVC remote, here on one machine.
- Two faults at once, and a fault during `posttrain repair` or `posttrain repair verify`.
- Flipped bits in memory, installed packages and git's objects.
- A Prefect server of your own and its database.
"""


def measured_stages(smoke: Path, folder: Path, count: int, first: int, results: Results, only: str | None) -> None:
    """Kill every stage so many times, or one of them."""
    with Server() as server:
        for stage in [only] if only else kills.STAGES:
            workspace = kills.prepared(smoke, folder / stage.replace(" ", "-"), stage)
            _put(results, "stages", stage, kills.torture(server, workspace, stage, count, seed=count + first))
            shutil.rmtree(workspace)


def measured_dvc(smoke: Path, folder: Path, count: int, first: int, results: Results, _: str | None) -> None:
    """Kill DVC at each kind of moment, less often than a stage: each takes ten times as long."""
    moments = [moment for moment in dvc_kills.MOMENTS for _ in range(max(count // 20, 1))]
    for stage in dvc_kills.STAGES:
        _put(results, "dvc", stage, dvc_kills.torture_dvc(smoke, folder / stage, stage, moments, seed=count + first))
    restored = dvc_kills.torture_restore(smoke, folder / "restored", max(count // 5, 1), seed=count + first)
    _put(results, "dvc", "the whole pipeline, from the run cache", restored)


def measured_damage(smoke: Path, folder: Path, count: int, first: int, results: Results, _: str | None) -> None:
    """Damage checkpoints, fill the disk, run two at once."""
    with Server() as server:
        for name, found in damage.damaged(server, smoke, folder, count, first).items():
            results["damage"][name] = found
            _write(results)


def page(results: Results) -> str:
    """The whole document."""
    lines = [HEAD.format(machine=machine())]
    for part, title in (("stages", STAGES_KILLED), ("dvc", DVC_KILLED)):
        if rows := results.get(part, {}):
            lines += [f"## {title}\n", ABOUT[title], "", *_kills(rows)]
    if results.get("damage"):
        lines += [f"## {DAMAGE}\n", ABOUT[DAMAGE], "", "| fault | tried | survived | how |", "|---|---:|---:|---|"]
        lines += [f"| {n} | {r['tried']} | {r['survived']} | {r['how']} |" for n, r in results["damage"].items()] + [""]
    return "\n".join([*lines, *tables(results), f"## {LIMITS}\n{NOT_COVERED}"])


def _kills(rows: dict[str, Any]) -> list[str]:
    """The table of what was killed, and where the kills hit."""
    lines = [
        "| what was killed | kills | runs compared | resumed from a checkpoint | wrong |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        lines.append(f"| {name} | {_sum(row)} | {row['compared']} | {row['resumed']} | {len(row['faults'])} |")
    compared, resumed = (sum(row[key] for row in rows.values()) for key in ("compared", "resumed"))
    wrong = sum(len(row["faults"]) for row in rows.values())
    lines += [f"| **all** | **{sum(map(_sum, rows.values()))}** | **{compared}** | **{resumed}** | **{wrong}** |", ""]
    if repaired := sum(row["repaired"] for row in rows.values()):
        lines += [f"{repaired} of them left an incomplete DVC file or a temporary file: {REPAIRED}", ""]
    where: Counter[str] = sum((Counter(row["kills"]) for row in rows.values()), Counter())
    lines += ["| what it was doing when it was killed | kills |", "|---|---:|"]
    return [*lines, *(f"| {doing} | {number} |" for doing, number in where.most_common()), ""]


def machine() -> str:
    """Where this is measured."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text() if info.is_file() else "", flags=re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = f"Python {platform.python_version()}, DVC {version('dvc')}, Prefect {version('prefect')}"
    return (
        f"{os.cpu_count()} cores ({names[0] if names else platform.machine()}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, {python}"
    )


def _sum(row: dict[str, Any]) -> int:
    return sum(row["kills"].values())


def _put(results: Results, part: str, name: str, tally: kills.Tally) -> None:
    row = {
        "kills": dict(tally.kills),
        "compared": tally.compared,
        "resumed": tally.resumed,
        "repaired": tally.repaired,
        "faults": tally.faults,
    }
    results[part][name] = row
    print(
        f"{part}: {name}: {tally.killed} kills, {tally.compared} runs compared, {tally.faults or 'none wrong'}",
        flush=True,
    )
    _write(results)


def _write(results: Results) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(_kept(page(results)), encoding="utf-8")


def _kept(text: str) -> str:
    """The page with the sections of the old one that this checkout has not measured."""
    head, *fresh = text.split("\n## ")
    old = PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.is_file() else []
    sections = {section.partition("\n")[0]: section.rstrip("\n") + "\n" for section in [*old, *fresh]}
    return "\n## ".join([head, *(sections[title] for title in TITLES if title in sections)])


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _run_smoke(folder: Path) -> None:
    make_workspace(folder, ROOT / "recipes/smoke.yaml")
    done = dvc(folder, "repro")
    if done.returncode:
        raise subprocess.SubprocessError(done.stdout)


def main(arguments: list[str]) -> int:
    """0 when nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure")
    parser.add_argument("--kills", type=int, default=200, help="of each stage")
    longest = "stop after so many minutes; the same command goes on (of the parts that are kept in the ledger)"
    parser.add_argument("--minutes", type=float, default=math.inf, help=longest)
    parser.add_argument("--first", type=int, default=0, help="the first seed: another one tries other moments")
    parser.add_argument("--stage", choices=kills.STAGES, help="this stage alone")
    chosen = parser.parse_args(arguments)
    until = time.time() + 60 * chosen.minutes
    parts = ("stages",) if chosen.stage else chosen.parts or PARTS
    old: Results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    fresh = () if chosen.stage else parts
    results: Results = {part: {} if part in fresh else old.get(part, {}) for part in PARTS}
    results["commits"] = old.get("commits", {})
    measures = {"stages": measured_stages, "dvc": measured_dvc, "damage": measured_damage}
    with tempfile.TemporaryDirectory(prefix="faults") as place:
        smoke = Path(place) / "smoke"
        if not TRIALS.keys() >= set(parts):
            _run_smoke(smoke)
        for part in parts:
            if part in TRIALS:
                results[part] = tried(part, Path(place) / part, chosen.kills, until, chosen.first)
                results["commits"][part] = _commit()
                _write(results)
            else:
                measures[part](smoke, Path(place) / part, chosen.kills, chosen.first, results, chosen.stage)
    wrong = [fault for part in ("stages", "dvc") for row in results[part].values() for fault in row["faults"]]
    wrong += [name for name, row in results["damage"].items() if row["survived"] != row["tried"]]
    wrong += [f"{name}: {one}" for part in TRIALS for name, row in results[part].items() for one in row["wrong"]]
    print("\n".join(wrong) if wrong else f"nothing went wrong; see {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
