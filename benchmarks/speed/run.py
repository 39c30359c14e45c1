"""Sides in turn, each in a fresh process pinned to one core; every report is kept as JSON."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.machine import machine, run_pinned, versions
from benchmarks.speed.cases import case_of
from benchmarks.speed.meter import Report

MACHINE, MACHINE_GPU = "machine.json", "machine-gpu.json"
"""What the newest report of a folder was measured on."""
SAME_LOSS = 2e-3
"""Sides that do the same mathematics agree this closely in every update."""
SAME_LOSS_BF16 = 2e-2
"""The same in bf16, where each side rounds in its own places."""
SAME_LENGTH = 0.25
"""Samples of other random numbers are as long as ours up to this share."""

Reports = dict[str, list[Report]]


class SideError(RuntimeError):
    """A side ended without a report."""


def alternate(case: str, sides: Sequence[str], rounds: int, folder: Path = RESULTS) -> Reports:
    """Return every side once, then again, until there are `rounds` reports of each; what is in the folder counts."""
    reports = load(case, folder)
    for turn in range(rounds):
        for side in sides:
            if len(reports.get(side, [])) <= turn:
                reports.setdefault(side, []).append(measured(case, side))
                save(case, reports, folder)
                print(f"{case} {side}: {reports[side][-1].rate:.2f}/s, {reports[side][-1].peak_mb:.0f} MB", flush=True)
    agree(case, reports)
    return reports


def measured(case: str, side: str) -> Report:
    """Return one side in a process of its own, on one core and one thread."""
    command = [sys.executable, "-m", "benchmarks.speed.side", case, side]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if case_of(case).device == "cpu":
        done = run_pinned(command, ROOT, environment)
    else:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SideError(f"{case} {side} failed:\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
    return Report(**json.loads(lines[-1]))


def agree(case: str, reports: Reports) -> None:
    """Nobody does less: the losses of sides with the same rows are the same; samples of others are as long."""
    if "posttrain" not in reports:
        return
    ours = reports["posttrain"][0]
    for side in {"bound", "trl", "trl_padded"} & set(reports):
        theirs = reports[side][0]
        if "length" in ours.seen:
            gap, bound = abs(theirs.seen["length"] / ours.seen["length"] - 1), SAME_LENGTH
        else:
            pairs = zip(ours.losses, theirs.losses, strict=True)
            bound = SAME_LOSS if case_of(case).device == "cpu" else SAME_LOSS_BF16
            gap = max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)
        if gap > bound:
            raise SideError(f"{case}: posttrain and {side} differ by {gap:.4f}: {ours} {theirs}")


def ratios(reports: Reports, side: str, rate: Callable[[Report], float] = lambda one: one.rate) -> list[float]:
    """Posttrain's rate over the side's, turn by turn."""
    pairs = zip(reports["posttrain"], reports[side], strict=False)
    return [rate(ours) / rate(theirs) for ours, theirs in pairs]


def median(reports: Sequence[Report], value: Callable[[Report], float]) -> float:
    """Return the middle of a value."""
    return statistics.median(value(report) for report in reports)


def load(case: str, folder: Path) -> Reports:
    """Return what has been measured."""
    file = _file(case, folder)
    if not file.is_file():
        return {}
    return {side: [Report(**one) for one in many] for side, many in json.loads(file.read_text()).items()}


def save(case: str, reports: Reports, folder: Path) -> None:
    """All of a case's reports."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({side: [asdict(one) for one in many] for side, many in reports.items()}, indent=1)
    _file(case, folder).write_text(text + "\n", encoding="utf-8")
    used, file = f"{machine()}, no GPU", MACHINE
    if case_of(case).device == "cuda":
        import torch

        used, file = torch.cuda.get_device_name(), MACHINE_GPU
    used += f"; {versions('torch', 'transformers', 'trl')}"
    (folder / file).write_text(json.dumps(used) + "\n", encoding="utf-8")


def _file(case: str, folder: Path) -> Path:
    return folder / f"{case.replace('/', '-')}.json"


def median_ratio(reports: Reports, side: str) -> float:
    """Return the middle of posttrain's rate over the side's."""
    found = sorted(ratios(reports, side))
    return found[len(found) // 2]
