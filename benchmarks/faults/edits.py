"""Edits of a stage's inputs while it runs: what dvc.lock names must be what the outputs come from."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.faults.ledger import Row
from benchmarks.faults.processes import Ended
from benchmarks.faults.project import RUN, command, ended, errors, made, products, repro, stage_runs, started
from posttrain.data.parquet import write_parquet
from posttrain.pipeline.lock.digests import recorded

RECORDING_S = 1.0
"""After the stage has ended DVC looks at its inputs once more."""
UNDONE_S = 1.5


def present(folder: Path, pattern: str) -> bool:
    """Whether a file is there; a folder that a running stage renames meanwhile counts as not yet."""
    try:
        return any(folder.rglob(pattern))
    except FileNotFoundError:
        return False


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """An edit of a text file."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (folder / name).write_text(text.replace(old, new))

    return edit


def table(folder: Path) -> None:
    write_parquet(pl.DataFrame({"number": [float(7 * n) for n in range(50)]}), folder / "data/numbers.parquet")


EDITS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a parameter": ("params.yaml", replaced("params.yaml", "rate: 0.9", "rate: 0.8")),
    "the stage's code": ("stages/fit.py", replaced("stages/fit.py", "SCALE * numbers", "2 * SCALE * numbers")),
    "a library file": ("posttrain/scale.py", replaced("posttrain/scale.py", "1.0", "3.0")),
    "a table": ("data/numbers.parquet", table),
}
UNRELATED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "another run's parameter": ("params.yaml", replaced("params.yaml", "rate: 0.5", "rate: 0.4")),
    "a comment": ("params.yaml", replaced("params.yaml", "fit:", "# a comment\nfit:")),
}
UNDONE = "an edit that is undone"
FAULTS = (*EDITS, *UNRELATED, UNDONE)


class Edits:
    """The project before the run that is disturbed, and what the run gives before and after each edit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = made(folder / "template")
        first = repro(self._template, "numbers")
        assert first.status == 0, first.output
        self.seconds, self.old = self._reference("old", lambda _: None)
        self.named = _named(folder / "old")
        self._new: dict[str, dict[str, str]] = {}

    def new(self, name: str) -> dict[str, str]:
        """What the run gives after an edit that came before it."""
        if name not in self._new:
            self._new[name] = self._reference(name, EDITS[name][1])[1]
        return self._new[name]

    def trial(self, seed: int, fault: str = "", after: str = "") -> Row:
        """One edit in one run, at a random moment or once a file has appeared."""
        rng = random.Random(f"edit {seed}")
        fault = fault or FAULTS[seed % len(FAULTS)]
        target = rng.choice(list(EDITS)) if fault == UNDONE else fault
        file, edit = (EDITS | UNRELATED)[target]
        folder = self._folder / f"trial{seed}"
        shutil.copytree(self._template, folder, symlinks=True)
        content = (folder / file).read_bytes()
        process = started(folder, "dvc", "repro", RUN)
        while not stage_runs(process) and process.poll() is None:
            time.sleep(0.01)
        if after:
            while not present(folder, after) and process.poll() is None:
                time.sleep(0.01)
        else:
            time.sleep((self.seconds + RECORDING_S) * rng.random())
        edit(folder)
        if fault == UNDONE:
            time.sleep(UNDONE_S * rng.random())
            (folder / file).write_bytes(content)
        kept = present(folder / "checkpoints", "step-*/sums.json")
        first = ended(process)
        case = _Case(self, folder, fault, target, file, content, kept)
        outcome, wrong = case.refused(first.output, rng) if first.status else case.accepted()
        row = {"fault": fault, "outcome": outcome, "wrong": wrong}
        shutil.rmtree(folder)
        return row

    def _reference(self, name: str, edit: Callable[[Path], None]) -> tuple[float, dict[str, str]]:
        folder = self._folder / name.replace(" ", "-")
        shutil.copytree(self._template, folder, symlinks=True)
        edit(folder)
        process = started(folder, "dvc", "repro", RUN)
        while not stage_runs(process) and process.poll() is None:
            time.sleep(0.01)
        began = time.monotonic()
        while stage_runs(process):
            time.sleep(0.01)
        seconds, run = time.monotonic() - began, ended(process)
        assert run.status == 0, run.output
        return seconds, products(folder)


class _Case:
    """One disturbed run, and whether what came of it is right."""

    def __init__(
        self, edits: Edits, folder: Path, fault: str, target: str, file: str, content: bytes, kept: Any
    ) -> None:
        self.edits, self.folder, self.fault, self.target = edits, folder, fault, target
        self.file, self.content, self.kept = file, content, kept

    def refused(self, output: str, rng: random.Random) -> tuple[str, str]:
        """The stage failed: in one line that names the input, without a record, and the next run ends as it should."""
        told = errors(output)
        if self.fault in UNRELATED or len(told) != 1 or self.file not in told[0] or "Traceback" in output:
            return "refused", f"not one clear line: {output[-600:]}"
        if RUN in recorded(self.folder):
            return "refused", "dvc.lock has the run all the same"
        restore = self.target == "a table" or self.fault == UNDONE or rng.random() < 0.5
        if restore:
            (self.folder / self.file).write_bytes(self.content)
        again = self._again()
        expected = self.edits.old if restore else self.edits.new(self.target)
        if again.status or products(self.folder) != expected:
            return "refused", f"the next run went wrong: {again.output[-600:]}"
        resumed = "fit begins at step" in again.output and "fit begins at step 0" not in again.output
        # a run that began with an edit that is undone has checkpoints of the edited input
        if restore and self.kept and not resumed and self.fault != UNDONE:
            return "refused", f"the next run did not resume: {again.output[-600:]}"
        return "refused, then " + ("resumed" if resumed else "run from the start"), self._end()

    def _again(self) -> Ended:
        """The next run; where other code has made the checkpoint, it asks, and is told to start from step 0."""
        again = repro(self.folder, RUN)
        if again.status and "posttrain checkpoints restart" in again.output:
            command(self.folder, "posttrain", "checkpoints", "restart", RUN)
            again = repro(self.folder, RUN)
        return again

    def accepted(self) -> tuple[str, str]:
        """The stage ended well: what dvc.lock names must have made the outputs, or `sync` must say that it has not."""
        synced = command(self.folder, "posttrain", "repair", "sync")
        if synced.status:
            again = self._again()
            back = self.fault == UNDONE or self.target == "a table"
            right = products(self.folder) == (self.edits.old if back else self.edits.new(self.target))
            return (
                "found by `posttrain repair sync`",
                "" if right and not again.status else f"not healed: {again.output[-600:]}",
            )
        named = _named(self.folder)
        if self.fault in UNRELATED:
            right = products(self.folder) == self.edits.old
            return "no effect", "" if right else "the outputs are others"
        if named == self.edits.named:
            right = products(self.folder).items() >= _made(self.edits.old).items()
            return "came before or after the run", self._end() if right else "SILENT: old inputs, other outputs"
        right = products(self.folder) == self.edits.new(self.target)
        return "used from the start", self._end() if right else "SILENT: new inputs, other outputs"

    def _end(self) -> str:
        """Nothing may be damaged after all."""
        if self.target == "a table":
            return ""
        found = command(self.folder, "posttrain", "repair", "verify")
        return found.output if found.status else ""


def _named(folder: Path) -> dict[str, Any]:
    """What dvc.lock names as the run's inputs."""
    entry = recorded(folder)[RUN]
    return {"deps": {dep["path"]: dep["md5"] for dep in entry["deps"]}, "params": entry["params"]}


def _made(found: dict[str, str]) -> dict[str, str]:
    """What the run itself has written."""
    return {name: digest for name, digest in found.items() if not name.startswith("data/")}
