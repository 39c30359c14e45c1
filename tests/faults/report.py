"""Runs the faults and writes docs/faults.md from what was measured.

    python -m tests.faults.report [PART ...] [--kills N] [--stage "online grpo"]

Parts: stages, dvc, damage, edits, flips, cuts, flows, services; all of them without an argument. The results of earlier
runs for other parts, or for other stages where one is named, are kept. Of edits, flips, cuts, flows and services each
trial is kept in .faults/ledger.jsonl until the code under test changes, so that an interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults import damage, dvc_kills, kills
from tests.faults.processes import Server
from tests.faults.trials import TRIALS, tables, tried
from tests.workspace import ROOT, dvc, make_workspace

RESULTS, PAGE = ROOT / ".faults/results.json", ROOT / "docs/faults.md"
PARTS = ("stages", "dvc", "damage", *TRIALS)
Results = dict[str, dict[str, Any]]

MENDED = (
    "`dvc.lock` or `.dvc/tmp/rwlock`, which it writes in place, or a trial of links beside an output. "
    "`python -m posttrain repair` (which `make run` and every flow call first) set it right."
)

HEAD = """# Faults

Written by `make faults` from what it measured; do not edit. Every stage of the smoke pipeline, and a run for each kind
of state that training keeps, is killed (SIGKILL to its process group) at seeded random moments and run again until it
ends; then every file that it wrote must have the bytes of a run that nobody killed, no file may be left torn and none
may be left over. How this works, and what is promised: [reproducibility.md](reproducibility.md).
"""


def measured_stages(smoke: Path, folder: Path, count: int, results: Results, only: str | None) -> None:
    """Kill every stage so many times, or one of them."""
    with Server() as server:
        for stage in [only] if only else kills.STAGES:
            workspace = kills.prepared(smoke, folder / stage.replace(" ", "-"), stage)
            _put(results, "stages", stage, kills.torture(server, workspace, stage, count, seed=count))
            shutil.rmtree(workspace)


def measured_dvc(smoke: Path, folder: Path, count: int, results: Results, _: str | None) -> None:
    """Kill DVC at each kind of moment, more seldom than a stage: each takes ten times as long."""
    moments = [moment for moment in dvc_kills.MOMENTS for _ in range(max(count // 20, 1))]
    for stage in dvc_kills.STAGES:
        _put(results, "dvc", stage, dvc_kills.torture_dvc(smoke, folder / stage, stage, moments, seed=count))
    restored = dvc_kills.torture_restore(smoke, folder / "restored", max(count // 5, 1), seed=count)
    _put(results, "dvc", "the whole pipeline, from the run cache", restored)


def measured_damage(smoke: Path, folder: Path, count: int, results: Results, _: str | None) -> None:
    """Damage checkpoints, fill the disk, run two at once."""
    with Server() as server:
        for name, found in damage.damaged(server, smoke, folder, count).items():
            results["damage"][name] = found
            _write(results)


def page(results: Results) -> str:
    """The whole document."""
    lines = [HEAD]
    for part, title in (("stages", "Stages killed"), ("dvc", "DVC killed")):
        rows = results.get(part, {})
        if not rows:
            continue
        lines += [f"## {title}\n", "| what ran | kills | lives compared | went on from a checkpoint | went wrong |"]
        lines += ["|---|---:|---:|---:|---:|"]
        lines += [f"| {n} | {_sum(r)} | {r['lives']} | {r['resumed']} | {len(r['faults'])} |" for n, r in rows.items()]
        lives, resumed, wrong = (sum(f(r) for r in rows.values()) for f in (_lives, _resumed, _wrong))
        total = sum(map(_sum, rows.values()))
        lines += [f"| **all** | **{total}** | **{lives}** | **{resumed}** | **{wrong}** |", ""]
        if mended := sum(int(row.get("mended", 0)) for row in rows.values()):
            lines += [f"{mended} of them left a file of DVC's own in part or behind: {MENDED}", ""]
        where: Counter[str] = sum((Counter(r["kills"]) for r in rows.values()), Counter())
        lines += ["| what it was doing when it was killed | kills |", "|---|---:|"]
        lines += [f"| {doing} | {number} |" for doing, number in where.most_common()] + [""]
    if results.get("damage"):
        lines += ["## Damage\n", "| fault | tried | survived | how |", "|---|---:|---:|---|"]
        lines += [f"| {n} | {r['tried']} | {r['survived']} | {r['how']} |" for n, r in results["damage"].items()] + [""]
    return "\n".join([*lines, *tables(results)])


def _sum(row: dict[str, Any]) -> int:
    return sum(row["kills"].values())


def _lives(row: dict[str, Any]) -> int:
    return int(row["lives"])


def _resumed(row: dict[str, Any]) -> int:
    return int(row["resumed"])


def _wrong(row: dict[str, Any]) -> int:
    return len(row["faults"])


def _put(results: Results, part: str, name: str, tally: kills.Tally) -> None:
    row = {
        "kills": dict(tally.kills),
        "lives": tally.lives,
        "resumed": tally.resumed,
        "mended": tally.mended,
        "faults": tally.faults,
    }
    results[part][name] = row
    print(
        f"{part}: {name}: {tally.killed} kills, {tally.lives} lives, {tally.faults or 'all as if never killed'}",
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
    return "\n## ".join([head, *sections.values()])


def _run_smoke(folder: Path) -> None:
    make_workspace(folder, ROOT / "recipes/smoke.yaml")
    done = dvc(folder, "repro")
    if done.returncode:
        raise subprocess.SubprocessError(done.stdout)


def main(arguments: list[str]) -> int:
    """0 when nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure anew")
    parser.add_argument("--kills", type=int, default=200, help="of each stage")
    parser.add_argument("--stage", choices=kills.STAGES, help="this stage alone")
    chosen = parser.parse_args(arguments)
    parts = ("stages",) if chosen.stage else chosen.parts or PARTS
    old: Results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    fresh = () if chosen.stage else parts
    results: Results = {part: {} if part in fresh else old.get(part, {}) for part in PARTS}
    measures = {"stages": measured_stages, "dvc": measured_dvc, "damage": measured_damage}
    with tempfile.TemporaryDirectory(prefix="faults") as place:
        smoke = Path(place) / "smoke"
        if not TRIALS.keys() >= set(parts):
            _run_smoke(smoke)
        for part in parts:
            if part in TRIALS:
                results[part] = tried(part, Path(place) / part, chosen.kills)
                _write(results)
            else:
                measures[part](smoke, Path(place) / part, chosen.kills, results, chosen.stage)
    wrong = [fault for part in ("stages", "dvc") for row in results[part].values() for fault in row["faults"]]
    wrong += [name for name, row in results["damage"].items() if row["survived"] != row["tried"]]
    wrong += [f"{name}: {one}" for part in TRIALS for name, row in results[part].items() for one in row["wrong"]]
    print("\n".join(wrong) if wrong else f"nothing went wrong; see {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
