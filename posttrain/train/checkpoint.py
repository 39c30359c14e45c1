"""Checkpoints: whole or absent, checksummed, named by the fingerprint of everything that the run depends on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.errors import CheckpointError
from posttrain.inputs import confirm
from posttrain.measure.phases import phase
from posttrain.measure.record import code_digest, cpu_isa, versions
from posttrain.workspace import DONE, HELD, checkpoint_path, drop_unheld, hold, recorded_digest

KEPT = 2
TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "sums.json"

T = TypeVar("T")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: named tensors and plain data."""

    step: int
    tensors: dict[str, Tensor]
    plain: dict[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without the prefix."""
        return {name[len(prefix) :]: part for name, part in self.tensors.items() if name.startswith(prefix)}


@phase("load")
def fingerprint(stage: str, params: Any, inputs: list[Path]) -> str:
    """A digest of the stage, its parameters and input files, the library's loaded code, the packages and the ISA."""
    digest = hashlib.sha256(f"{stage}\n{versions()}\n{cpu_isa()}\n{code_digest()}\n".encode())
    digest.update(json.dumps(params, sort_keys=True, default=str).encode())
    for path in inputs:
        files = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
        for file in files:
            digest.update(f"{file.as_posix()}\n".encode())
            digest.update(bytes.fromhex(_digest(file)))
    return digest.hexdigest()[:16]


class Checkpoints:
    """The checkpoints of one run, in `checkpoints/STAGE/FINGERPRINT/step-N` under the main workspace.

    They stay when the run is finished, until DVC has recorded its outputs: a stage that starts later removes them.
    """

    def __init__(self, stage: str, mark: str) -> None:
        self._stage, self._mark = checkpoint_path(stage), mark
        self._folder = self._stage / mark
        hold(self._folder / HELD, f"a run of {stage} with the same inputs")
        for left in self._folder.glob(".step-*"):  # by a process that was killed while it saved
            shutil.rmtree(left, ignore_errors=True)

    @phase("write")
    def save(self, saved: Saved) -> None:
        """Write one checkpoint, if the inputs are still the same; it appears under its name only when it is whole."""
        confirm()
        self._drop_foreign()
        target = self._folder / _name(saved.step)
        fresh = self._folder / f".{target.name}"
        try:
            fresh.mkdir(parents=True, exist_ok=True)
            tensors = {name: part.detach().cpu().contiguous() for name, part in saved.tensors.items()}
            save_file(tensors, str(fresh / TENSORS))
            plain = json.dumps({"step": saved.step, "mark": self._mark, **saved.plain})
            (fresh / STATE).write_text(plain, encoding="utf-8")
            sums = {name: _digest(fresh / name) for name in (TENSORS, STATE)}
            (fresh / SUMS).write_text(json.dumps(sums), encoding="utf-8")
            for file in fresh.iterdir():
                _sync(file)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(fresh, target)
            _sync(self._folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            fix = f"Free the disk or fix the folder's rights, and run it again: it goes on from {self._kept()}"
            raise CheckpointError(what=f"cannot be written ({error})", where=str(target), fix=fix) from error
        for old in self._all()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    @phase("load")
    def resume(self, take: Callable[[Saved], T]) -> T | None:
        """What `take` makes of the newest good checkpoint; those that are not are named on stderr and passed over.

        `take` raises a CheckpointError before it changes anything when the checkpoint does not fit.
        """
        for folder in reversed(self._all()):
            try:
                return take(self._read(folder))
            except CheckpointError as error:
                print(f"checkpoint passed over: {error}", file=sys.stderr)
        return None

    def finish(self, plot: Path) -> None:
        """Note that the run is finished and which plot it wrote, by which it is known when DVC has recorded it."""
        if self._folder.is_dir():
            (self._folder / DONE).write_text(recorded_digest(plot), encoding="utf-8")

    def check_space(self, size: int) -> None:
        """Refuse to begin a run whose checkpoints the disk will not hold."""
        needed = (KEPT + 1 - min(len(self._all()), KEPT)) * size  # the next one is written before the oldest goes
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            what = f"checkpoints of {_amount(size)} each need {_amount(needed)} of disk, and {_amount(free)} are free"
            fix = "Free the disk, or make checkpoints/ a link to a larger one"
            raise CheckpointError(what=what, where=str(self._stage), fix=fix)

    def _kept(self) -> str:
        kept = self._all()
        return f"the checkpoint {kept[-1].name}" if kept else "the start"

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    def _drop_foreign(self) -> None:
        """Checkpoints of the same stage with other inputs are of no use, unless another process is making them."""
        for folder in self._stage.iterdir():
            if folder != self._folder and (folder / HELD).is_file():
                drop_unheld(folder)

    def _read(self, folder: Path) -> Saved:
        try:
            sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
            for name in (TENSORS, STATE):
                if _digest(folder / name) != sums[name]:
                    raise CheckpointError(what=f"{name} does not match its checksum", where=str(folder), fix=DELETE)
            plain = json.loads((folder / STATE).read_text(encoding="utf-8"))
            if (plain["mark"], _name(plain["step"])) != (self._mark, folder.name):
                what = f"it is step {plain['step']} of another run ({plain['mark']})"
                raise CheckpointError(what=what, where=str(folder), fix=DELETE)
            tensors = load_file(str(folder / TENSORS))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(what=f"cannot be read ({error})", where=str(folder), fix=DELETE) from error
        return Saved(int(plain.pop("step")), tensors, plain)


DELETE = "Delete it"


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _amount(size: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
