"""Checkpoints: complete or absent, checksummed, in a folder named by the run's parameters and inputs.

Each records the code, packages and CPU instructions that made it. Resuming with others needs a person's consent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from posttrain.distributed import world
from posttrain.errors import CheckpointError, PipelineError
from posttrain.files import format_age, format_size, fsync, write_json
from posttrain.locks import HELD, hold, is_locked, remove_unlocked
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.files.weights import TensorFile
from posttrain.models.sharding import is_divided, own_part, place_of, writes
from posttrain.pipeline.digests import Digests
from posttrain.pipeline.inputs import confirm
from posttrain.settings.plain import CHECKPOINTS, check_format
from posttrain.train.provenance import Maker, differences, is_maker, read_maker, stage_maker
from posttrain.workspace import DONE, checkpoint_path, recorded_digest

KEPT = 2
TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "sums.json"
PART = re.compile(r"tensors-\d{5}-of-\d{5}\.safetensors")
"""The rows that one process of several wrote."""
RUN = "run.json"
"""The parameters and inputs of the run that a folder of checkpoints belongs to."""
ASKED, ACCEPTED = "asked.json", "accepted.json"
"""What would have resumed a checkpoint of another maker, and what a person has let resume it."""

DELETE = "Delete it"

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointData:
    """The contents of a checkpoint: named tensors and plain data."""

    step: int
    tensors: Mapping[str, Tensor]
    plain: dict[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names have the prefix, without it."""
        return dict(self.later(prefix))

    def later(self, prefix: str) -> Mapping[str, Tensor]:
        """Return the same, each tensor read from its file when it is needed."""
        return _Renamed(self.tensors, {name[len(prefix) :]: name for name in self.tensors if name.startswith(prefix)})


class _Renamed(Mapping[str, Tensor]):
    """Some tensors of a mapping under other names."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._tensors, self._names = tensors, names

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Parts(Mapping[str, Tensor]):
    """The tensors of a checkpoint that several processes wrote: of some, each wrote some rows."""

    def __init__(self, whole: dict[str, Tensor], files: Sequence[Path]) -> None:
        self._whole = whole
        self._files: list[Any] = [safe_open(str(file), framework="pt") for file in files]
        self._names = [*whole, *self._files[0].keys()]

    def __getitem__(self, name: str) -> Tensor:
        if name in self._whole:
            return self._whole[name]
        try:
            return torch.cat([file.get_tensor(name) for file in self._files])
        except SafetensorError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@phase("load")
def run_key(stage: str, settings: Mapping[str, Any], inputs: Sequence[Path]) -> dict[str, Any]:
    """Return what identifies a run's checkpoints: the stage, its parameters and the digests of its inputs."""
    digests = Digests()
    key = {"stage": stage, "settings": settings, "inputs": {path.as_posix(): digests.of(str(path)) for path in inputs}}
    plain: dict[str, Any] = json.loads(json.dumps(key, sort_keys=True, default=str))
    return plain


def fingerprint(key: Mapping[str, Any]) -> str:
    """Return the name of the folder of a run's checkpoints."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def read_checkpoint(folder: Path, mark: str) -> CheckpointData:
    """A checkpoint of the run with this fingerprint; raises a CheckpointError if it is damaged or of another run."""
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        parts = sorted(name for name in sums if PART.fullmatch(name))
        complete = not parts or len(parts) == int(parts[-1].partition("-of-")[2][:5])
        files = [TENSORS, STATE, *parts]
        wrong = world.from_first(lambda: [name for name in files if not _is_right(folder / name, sums)])
        if wrong or not complete:
            what = f"{wrong[0]} does not match its checksum" if wrong else "parts of it are missing"
            raise CheckpointError(what=what, where=str(folder), fix=DELETE)
        plain = json.loads((folder / STATE).read_text(encoding="utf-8"))
        check_format(int(plain["format"]), CHECKPOINTS, str(folder), PipelineError)
        if plain["format"] < CHECKPOINTS:
            what = f"made by an older posttrain (format {plain['format']}; this one resumes format {CHECKPOINTS})"
            fix = f"Go on with the version that made it, or delete {folder.parent} to start from step 0"
            raise PipelineError(what=what, where=str(folder), fix=fix)
        edits = plain["edits"]
        if not is_maker(plain["maker"]) or type(edits) is not list or {*map(type, edits)} - {str}:
            raise CheckpointError(what="it does not say what made it", where=str(folder), fix=DELETE)
        if (plain["mark"], _name(plain["step"])) != (mark, folder.name):
            what = f"it is step {plain['step']} of another run ({plain['mark']})"
            raise CheckpointError(what=what, where=str(folder), fix=DELETE)
        tensors: Mapping[str, Tensor] = load_file(str(folder / TENSORS))
        if parts:
            tensors = _Parts(dict(tensors), [folder / name for name in parts])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(what=f"cannot be read ({error})", where=str(folder), fix=DELETE) from error
    return CheckpointData(int(plain.pop("step")), tensors, plain)


def nearest_checkpoint(
    stage: str, settings: Mapping[str, Any], inputs: Sequence[Path], step: int
) -> CheckpointData | None:
    """Return the newest good checkpoint up to a step; nothing is locked or written."""
    mark = fingerprint(run_key(stage, settings, inputs))
    folders = sorted((checkpoint_path(stage) / mark).glob("step-*"), reverse=True)
    for folder in (path for path in folders if path.name <= _name(step)):
        with contextlib.suppress(CheckpointError):
            return read_checkpoint(folder, mark)
    return None


class Checkpoints:
    """The checkpoints of one run, in `checkpoints/STAGE/FINGERPRINT/step-N` under the main workspace.

    They stay when the run is finished, until DVC has recorded its outputs: a stage that starts later removes them.
    Those of unfinished runs with other parameters or inputs stay until a person removes them.
    """

    def __init__(
        self,
        stage: str,
        settings: Mapping[str, Any],
        inputs: Sequence[Path],
        *,
        folder: Path | None = None,
        maker: Maker | None = None,
    ) -> None:
        """`folder`, `maker`: by default those of the stage."""
        key = world.from_first(lambda: run_key(stage, settings, inputs))
        self._name, self._stage, self._mark = stage, folder or checkpoint_path(stage), fingerprint(key)
        self._folder = self._stage / self._mark
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._maker, self._edits = maker or stage_maker(stage), list[str]()
        if world.is_rank_zero():
            self._open(key)
        world.wait_for_all()

    def _open(self, key: Mapping[str, Any]) -> None:
        """Make the folder, hold it, and remove what a killed process left."""
        stage = self._name
        hold(self._folder / HELD, f"a run of {stage} with the same inputs")
        for left in self._folder.glob(".step-*"):  # of a process that was killed while it saved
            shutil.rmtree(left, ignore_errors=True)
        write_json(self._folder / RUN, {"format": CHECKPOINTS, **key})
        if others := self._other_unfinished_runs():
            size = format_size(
                sum(file.stat().st_size for other in others for file in other.rglob("*") if file.is_file())
            )
            what = f"{len(others)} unfinished runs with other parameters or inputs keep {size} of checkpoints"
            print(f"{stage}: {what}; `posttrain checkpoints` lists them")

    @property
    def folder(self) -> Path:
        """The folder of this run's checkpoints."""
        return self._folder

    @phase("write")
    def save(self, saved: CheckpointData) -> None:
        """Write one checkpoint, if the inputs are unchanged; it appears under its name only when it is complete.

        The tensors are written when this returns and may change. Checksums, fsync and the name follow in a thread while
        training continues; their failure is raised by the next call of `save` or `wait`.
        """
        self.wait()
        if world.is_rank_zero():
            confirm()
            self._remove_finished()
        target = self._folder / _name(saved.step)
        fresh = self._folder / f".{target.name}"
        try:
            fresh.mkdir(parents=True, exist_ok=True)
            _write_tensors(fresh, saved.tensors)
            if not world.is_rank_zero():
                world.wait_for_all()
                return
            own = {"format": CHECKPOINTS, "step": saved.step, "mark": self._mark}
            made = {"maker": self._maker, "edits": self._edits}
            (fresh / STATE).write_text(json.dumps({**saved.plain, **own, **made}), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise self._not_written(fresh, target, error) from error
        world.wait_for_all()
        self._writing = self._writer.submit(self._complete, fresh, target)

    @phase("write")
    def wait(self) -> None:
        """Wait until the newest checkpoint is complete."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _complete(self, fresh: Path, target: Path) -> None:
        """Checksums, fsync and the name; then the oldest checkpoints go."""
        try:
            sums = {file.name: _digest(file) for file in sorted(fresh.iterdir()) if file.name != SUMS}
            (fresh / SUMS).write_text(json.dumps(sums), encoding="utf-8")
            for file in fresh.iterdir():
                fsync(file)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(fresh, target)
            fsync(self._folder)
        except OSError as error:
            raise self._not_written(fresh, target, error) from error
        kept = [checkpoint for checkpoint in self._all() if checkpoint <= target][-KEPT:]  # later ones were skipped
        for old in set(self._all()) - set(kept):
            shutil.rmtree(old, ignore_errors=True)

    def _not_written(self, fresh: Path, target: Path, error: Exception) -> CheckpointError:
        shutil.rmtree(fresh, ignore_errors=True)
        fix = f"Free some disk space or fix the folder's rights, and run it again: it resumes from {self._newest()}"
        return CheckpointError(what=f"cannot be written ({error})", where=str(target), fix=fix)

    @phase("load")
    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:
        """Return the result of `restore` on the newest good checkpoint; others are named on stderr and skipped.

        `restore` raises a CheckpointError before it changes anything when the checkpoint does not fit. A checkpoint of
        another maker ends the stage, unless a person has accepted the present one.
        """
        self.wait()
        for folder in reversed(self._all()):
            try:
                saved = read_checkpoint(folder, self._mark)
                edits = self._edits_since(saved, folder)
                restored = restore(saved)
            except CheckpointError as error:
                print(f"checkpoint skipped: {error}", file=sys.stderr)
                continue
            if world.is_rank_zero():
                (self._folder / ASKED).unlink(missing_ok=True)
            self._edits = edits
            if edits:
                note(resumed_after_edits="; ".join(edits))
            return restored
        return None

    def finish(self, plot: Path) -> None:
        """Note that the run is finished and which plot it wrote, by which it is known when DVC has recorded it."""
        self.wait()
        if self._folder.is_dir() and world.is_rank_zero():
            (self._folder / DONE).write_text(recorded_digest(plot), encoding="utf-8")

    def check_space(self, size: int) -> None:
        """Refuse to begin a run whose checkpoints the disk will not hold."""
        needed = (KEPT + 1 - min(len(self._all()), KEPT)) * size  # the next one is written before the oldest goes
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            amounts = f"{format_size(size)} each need {format_size(needed)}"
            what = f"checkpoints of {amounts} of disk, and {format_size(free)} are free"
            fix = "Free some disk space (`posttrain checkpoints` lists what lies there), or make "
            fix += "checkpoints/ a link to a larger one"
            raise CheckpointError(what=what, where=str(self._stage), fix=fix)

    def _newest(self) -> str:
        kept = self._all()
        return f"the checkpoint {kept[-1].name}" if kept else "the start"

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    def _other_runs(self) -> list[Path]:
        return [folder for folder in self._stage.iterdir() if folder != self._folder and (folder / HELD).is_file()]

    def _other_unfinished_runs(self) -> list[Path]:
        return [
            run
            for run in self._other_runs()
            if any(run.glob("step-*")) and not (run / DONE).is_file() and not is_locked(run / HELD)
        ]

    def _remove_finished(self) -> None:
        """Remove the folders of the stage's other runs that are finished or never saved a checkpoint."""
        for folder in self._other_runs():
            if (folder / DONE).is_file() or not any(folder.glob("step-*")):
                remove_unlocked(folder)

    def _edits_since(self, saved: CheckpointData, folder: Path) -> list[str]:
        """Return what was edited since the run began, now included; raise if nobody has accepted it."""
        made, edits = saved.plain["maker"], list(saved.plain["edits"])
        changed = differences(made, self._maker)
        if not changed:
            return edits
        accepted = read_maker(self._folder / ACCEPTED)
        if accepted is None or differences(accepted, self._maker):
            if world.is_rank_zero():
                write_json(self._folder / ASKED, self._maker)
            stage = os.environ.get("DVC_STAGE", self._name).rpartition(":")[2]
            age = format_age(time.time() - folder.stat().st_mtime)
            named = ", ".join([*changed[:10], *(["and more"] if len(changed) > 10 else [])])
            what = f"step {saved.step}, saved {age} ago, was made with other code or packages: {named}"
            command = "posttrain checkpoints"
            fix = f"Resume it anyway with `{command} resume {stage}`, or start from step 0 with `{command} restart"
            raise PipelineError(what=what, where=str(self._folder), fix=f"{fix} {stage}`")
        return [*edits, f"step {saved.step}: {', '.join(changed)}"]


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors in the first process, and this process's rows of those that are divided."""
    divided = {name: part for name, part in tensors.items() if is_divided(part) and writes(part)}
    named = {TENSORS: {name: part for name, part in tensors.items() if not is_divided(part)}}
    if not world.is_rank_zero():
        named = {}
    if divided:
        part, parts = place_of(next(iter(divided.values())))
        file = f"tensors-{part + 1:05d}-of-{parts:05d}.safetensors"
        named[file] = {name: own_part(whole) for name, whole in divided.items()}
    for name, own in named.items():
        with TensorFile(folder / name, own) as opened:
            for key, tensor in own.items():
                opened.write(key, tensor)


def _is_right(file: Path, sums: Mapping[str, str]) -> bool:
    """Return whether a file is there with its digest; it never raises, for all processes wait for the answer."""
    try:
        return _digest(file) == sums.get(file.name)
    except OSError:
        return False


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
