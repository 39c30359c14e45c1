"""Flipped bits and emptied files where DVC trusts what it has: nothing wrong may be read, and all of it is found."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from benchmarks.faults.ledger import Row
from benchmarks.faults.project import command, errors, made, products, repro
from posttrain.pipeline.lock.digests import recorded
from posttrain.pipeline.lock.fsync import cached

CACHE = Path(".dvc/cache/files/md5")
READERS = {"data": "fit@b", "models": "summary", "metrics": "summary"}
"""Which stage reads what lies in a folder."""
FAULTS = (
    "a bit in a cached object",
    "a bit in an output, its times kept",
    "a cached object emptied",
    "an output emptied",
    "a bit in dvc.lock",
    "a bit in the run cache",
    "a bit in the memory of digests",
)


class Flips:
    """The finished project, and copies of it that are damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.template = made(folder / "template")
        first = repro(self.template)
        assert first.status == 0, first.output
        self.whole = products(self.template)

    def trial(self, seed: int, fault: str = "") -> Row:
        """Damage one file, have it read, then verify and run again."""
        rng = random.Random(f"flip {seed}")
        fault = fault or FAULTS[seed % len(FAULTS)]
        folder = self._folder / f"trial{seed}"
        shutil.copytree(self.template, folder, symlinks=True)
        outcome, wrong = self._tried(folder, fault, rng)
        shutil.rmtree(folder)
        return {"fault": fault, "outcome": outcome, "wrong": wrong}

    def _tried(self, folder: Path, fault: str, rng: random.Random) -> tuple[str, str]:
        if fault == "a bit in dvc.lock":
            flip(folder / "dvc.lock", rng)
            return self._healed(folder, "DVC ran it again or restored it")
        if fault == "a bit in the memory of digests":
            flip(folder / ".dvc/tmp/digests.json", rng)
            forced = repro(folder, "--force", "--single-item", "summary")
            return self._healed(folder, "read again") if not forced.status else ("", f"refused: {forced.output[-600:]}")
        if fault == "a bit in the run cache":
            flip(rng.choice(sorted((folder / ".dvc/cache/runs").glob("*/*/*"))), rng)
            return self._found(folder)
        out = rng.choice(outputs(folder))
        place = folder / out["path"]
        if "cached" in fault:
            damage(rng.choice(list(cached(folder / CACHE, out))), fault, rng)
            remove(place)
            repro(folder)  # DVC takes the output from its cache, or fails
        else:
            damage(rng.choice([place] if place.is_file() else sorted(place.iterdir())), fault, rng)
        return self._refused(folder, str(out["path"]))

    def _refused(self, folder: Path, path: str) -> tuple[str, str]:
        """Who reads the damaged output refuses it in one line; then it is found and healed."""
        here, reader = products(folder), READERS.get(path.split("/", maxsplit=1)[0])
        # an output that DVC has refused to restore, with an error, is missing: then there is nothing damaged to read
        there = (folder / path).exists()
        damaged = there and any(here.get(one) != digest for one, digest in self.whole.items() if one.startswith(path))
        if reader and damaged:
            read = repro(folder, "--force", "--single-item", reader)
            told = errors(read.output)
            missing = "does not exist" in read.output
            if not missing and (not read.status or len(told) != 1 or "posttrain repair verify" not in told[0]):
                return "", f"SILENT or unclear: {reader} reads a damaged {path}: {read.output[-600:]}"
            outcome, wrong = self._found(folder)
            return f"refused by the stage that reads it, {outcome}", wrong
        return self._found(folder)

    def _found(self, folder: Path) -> tuple[str, str]:
        found = command(folder, "posttrain", "repair", "verify")
        outcome, wrong = self._healed(
            folder, "found by `posttrain repair verify`" if found.status else "DVC had healed it"
        )
        if not found.status and not wrong:
            whole = products(folder) == self.whole
            return outcome, "" if whole else "SILENT: verify has not found it"
        return outcome, wrong

    def _healed(self, folder: Path, outcome: str) -> tuple[str, str]:
        """After `repair` and `repro` everything is as it was, and nothing is left to find."""
        repaired = command(folder, "posttrain", "repair")
        again = repro(folder)
        if repaired.status or again.status:
            return outcome, f"not healed: {repaired.output}{again.output[-600:]}"
        if products(folder) != self.whole:
            return outcome, "SILENT: the outputs differ after all"
        left = command(folder, "posttrain", "repair", "verify")
        return outcome, left.output if left.status else ""


def outputs(folder: Path) -> list[dict[str, str]]:
    """The outputs in DVC's cache."""
    outs = [out for entry in recorded(folder).values() for out in entry["outs"]]
    return [out for out in outs if not out["path"].startswith("report/")]


def damage(file: Path, fault: str, rng: random.Random) -> None:
    """Flip a bit, or empty the file; the times stay where DVC goes by them."""
    before, mode = file.stat(), file.stat().st_mode
    file.chmod(0o644)
    if "emptied" in fault:
        file.write_bytes(b"")
    else:
        flip(file, rng)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    file.chmod(mode)


def flip(file: Path, rng: random.Random) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.chmod(0o644)
    file.write_bytes(data)


def remove(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
