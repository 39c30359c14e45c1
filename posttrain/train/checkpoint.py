"""Checkpoints: complete or absent, with checksums, in a folder named after the run's parameters and inputs.

Each checkpoint records the code, packages and CPU instructions that made it. Resuming with others needs a person's
consent.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from posttrain.distributed import world
from posttrain.errors import CheckpointError, PipelineError
from posttrain.files import format_size, fsync, write_json
from posttrain.locks import HELD, hold
from posttrain.measure.phases import phase
from posttrain.measure.provenance import Maker, differences, is_maker
from posttrain.measure.record import note
from posttrain.models.files.weights import TensorFile
from posttrain.models.sharding import is_divided, own_part, place_of, writes
from posttrain.settings.plain import CHECKPOINTS, check_format

CHECKPOINTS_KEPT = 2
TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "sums.json"
PART = re.compile(r"tensors-\d{5}-of-\d{5}\.safetensors")
"""The file of rows that one of several processes wrote."""
RUN = "run.json"
"""The file with the parameters and inputs of the run that owns a folder of checkpoints."""

DELETE = "Delete it"

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointData:
    """The contents of a checkpoint: named tensors and plain data."""

    step: int
    tensors: Mapping[str, Tensor]
    plain: dict[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names have this prefix, with the prefix removed."""
        return dict(self.later(prefix))

    def later(self, prefix: str) -> Mapping[str, Tensor]:
        """Return these tensors, but read each tensor from its file only on use."""
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
    """The tensors of a checkpoint from several processes. For some tensors, each process wrote some rows."""

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


def plain_key(name: str, settings: Mapping[str, Any], inputs: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the identity of a run's checkpoints: its name, its settings and the digests of its inputs."""
    key = {"stage": name, "settings": settings, "inputs": inputs}
    plain: dict[str, Any] = json.loads(json.dumps(key, sort_keys=True, default=str))
    return plain


def fingerprint(key: Mapping[str, Any]) -> str:
    """Return the folder name of a run's checkpoints."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def read_checkpoint(folder: Path, mark: str) -> CheckpointData:
    """Return the checkpoint of the run with this fingerprint.

    Raise a CheckpointError if it is damaged or another run's.
    """
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        parts = sorted(name for name in sums if PART.fullmatch(name))
        complete = not parts or len(parts) == int(parts[-1].partition("-of-")[2][:5])
        files = [TENSORS, STATE, *parts]
        wrong = world.from_first(lambda: [name for name in files if not _is_right(folder / name, sums)])
        if wrong or not complete:
            what = f"{wrong[0]} does not match its checksum" if wrong else "some of its parts are missing"
            raise CheckpointError(what=what, where=str(folder), fix=DELETE)
        plain = json.loads((folder / STATE).read_text(encoding="utf-8"))
        check_format(int(plain["format"]), CHECKPOINTS, str(folder), PipelineError)
        if plain["format"] < CHECKPOINTS:
            what = f"made by an older posttrain (format {plain['format']}; this one resumes format {CHECKPOINTS})"
            fix = f"Continue with the version that made it, or delete {folder.parent} to start from step 0"
            raise PipelineError(what=what, where=str(folder), fix=fix)
        edits = plain["edits"]
        if not is_maker(plain["maker"]) or type(edits) is not list or {*map(type, edits)} - {str}:
            raise CheckpointError(what="it does not record what made it", where=str(folder), fix=DELETE)
        if (plain["mark"], step_name(plain["step"])) != (mark, folder.name):
            what = f"it contains step {plain['step']} of another run ({plain['mark']})"
            raise CheckpointError(what=what, where=str(folder), fix=DELETE)
        tensors: Mapping[str, Tensor] = load_file(str(folder / TENSORS))
        if parts:
            tensors = _Parts(dict(tensors), [folder / name for name in parts])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(what=f"cannot be read ({error})", where=str(folder), fix=DELETE) from error
    return CheckpointData(int(plain.pop("step")), tensors, plain)


class CheckpointStore(Protocol):
    """Saves and finds the checkpoints of a run."""

    keeps: bool
    """True if it stores anything. If not, the run does not store rollouts either."""

    @property
    def folder(self) -> Path:
        """The folder for other files that a run writes during training, e.g. its rollouts."""
        ...

    def save(self, saved: CheckpointData) -> None:
        """Save one checkpoint. The tensors may change after this returns."""
        ...

    def wait(self) -> None:
        """Wait until the newest checkpoint is complete."""
        ...

    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:
        """Return the result of `restore` on the newest valid checkpoint; None if there is none."""
        ...

    def check_space(self, size: int) -> None:
        """Refuse to start a run if the disk cannot hold its checkpoints of `size` bytes each."""

    def finish(self) -> None:
        """Record that the run has finished its last step."""


class NoCheckpoints:
    """Saves nothing."""

    keeps, folder = False, Path()

    def save(self, saved: CheckpointData) -> None:
        """Save nothing."""

    def wait(self) -> None:
        """Return at once; nothing was written."""

    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:  # noqa: ARG002
        """Return None; the run starts at the first step."""
        return None

    def check_space(self, size: int) -> None:
        """Accept any size; nothing is written."""

    def finish(self) -> None:
        """Do nothing; nothing is kept."""


class FolderCheckpoints:
    """The checkpoints of one run in `FOLDER/FINGERPRINT/step-N`. A run with the same key resumes them."""

    keeps = True

    def __init__(self, folder: Path, key: Mapping[str, Any], maker: Maker, name: str) -> None:
        """`key`: identifies the run. `maker`: the code and packages that save. `name`: the run's name in messages."""
        self._name, self._above, self._mark = name, folder, fingerprint(key)
        self._folder = folder / self._mark
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._maker, self._edits = maker, list[str]()
        self._key, self._is_open = key, False

    @property
    def begun(self) -> bool:
        """True if this run has saved checkpoints before."""
        return any(self._folder.glob("step-*"))

    def open(self) -> None:
        """Create and lock the folder once. A run that fails before training writes nothing."""
        if self._is_open:
            return
        self._is_open = True
        if world.is_rank_zero():
            self._open(self._key)
        world.wait_for_all()

    def _open(self, key: Mapping[str, Any]) -> None:
        """Create and lock the folder, and remove leftovers of a killed process."""
        hold(self._folder / HELD, f"a run of {self._name} with the same inputs")
        for left in self._folder.glob(".step-*"):  # of a process that was killed while it saved
            shutil.rmtree(left, ignore_errors=True)
        write_json(self._folder / RUN, {"format": CHECKPOINTS, **key})

    @property
    def folder(self) -> Path:
        """The folder of this run's checkpoints."""
        self.open()
        return self._folder

    @phase("write")
    def save(self, saved: CheckpointData) -> None:
        """Write one checkpoint. It appears under its name only when it is complete.

        When this returns, the tensors are written and may change. Checksums, fsync and the final name follow in a
        thread while training continues. The next call of `save` or `wait` raises their errors.
        """
        self.open()
        self.wait()
        if world.is_rank_zero():
            self._before_save()
        target = self._folder / step_name(saved.step)
        fresh = self._folder / f".{target.name}"
        try:
            fresh.mkdir(parents=True, exist_ok=True)
            _write_tensors(fresh, saved.tensors)
            if not world.is_rank_zero():
                world.wait_for_all()
                return
            identity = {"format": CHECKPOINTS, "step": saved.step, "mark": self._mark}
            made = {"maker": self._maker, "edits": self._edits}
            (fresh / STATE).write_text(json.dumps({**saved.plain, **identity, **made}), encoding="utf-8")
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
        """Compute checksums, fsync and rename; then remove the oldest checkpoints."""
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
        newest = [checkpoint for checkpoint in self._all() if checkpoint <= target][
            -CHECKPOINTS_KEPT:
        ]  # later ones were skipped
        for old in set(self._all()) - set(newest):
            shutil.rmtree(old, ignore_errors=True)

    def _not_written(self, fresh: Path, target: Path, error: Exception) -> CheckpointError:
        shutil.rmtree(fresh, ignore_errors=True)
        fix = f"Free some disk space or fix the folder's permissions. The next run resumes from {self._newest()}"
        return CheckpointError(what=f"cannot be written ({error})", where=str(target), fix=fix)

    @phase("load")
    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:
        """Return the result of `restore` on the newest valid checkpoint.

        Invalid ones are reported on stderr and skipped.

        If a checkpoint does not fit, `restore` raises a CheckpointError before it changes anything. A checkpoint by
        another maker ends the run, unless the store permits it.
        """
        self.open()
        self.wait()
        for folder in reversed(self._all()):
            try:
                saved = read_checkpoint(folder, self._mark)
                edits = self._edits_since(saved, folder)
                restored = restore(saved)
            except CheckpointError as error:
                print(f"checkpoint skipped: {error}", file=sys.stderr)
                continue
            self._resumed()
            self._edits = edits
            if edits:
                note(resumed_after_edits="; ".join(edits))
            return restored
        return None

    def check_space(self, size: int) -> None:
        """Refuse to start a run if the disk cannot hold its checkpoints."""
        self.open()
        more = CHECKPOINTS_KEPT + 1 - min(len(self._all()), CHECKPOINTS_KEPT)
        needed = more * size  # the next one is written before the oldest goes
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            amounts = f"{format_size(size)} each need {format_size(needed)}"
            what = f"checkpoints of {amounts} of disk space, but {format_size(free)} are free"
            fix = f"Free some disk space{self._listed}, or make the folder a link to a larger disk"
            raise CheckpointError(what=what, where=str(self._above), fix=fix)

    def finish(self) -> None:
        """Wait until the last checkpoint is complete."""
        self.wait()

    def _newest(self) -> str:
        complete = self._all()
        return f"the checkpoint {complete[-1].name}" if complete else "the start"

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    _listed = ""
    """Text that messages about disk space add: how to list large files."""

    def _before_save(self) -> None:
        """Check that a checkpoint may be saved now."""

    def _resumed(self) -> None:
        """Record that a checkpoint was resumed."""

    def _edits_since(self, saved: CheckpointData, folder: Path) -> list[str]:
        """Return the edits since the run began, including new ones. Raise if the checkpoint may not be resumed."""
        if changed := differences(saved.plain["maker"], self._maker):
            what = f"step {saved.step} was saved with other code or packages: {', '.join(changed[:5])}"
            fix = "Use the earlier code and packages again, or remove the folder to start from step 0"
            raise PipelineError(what=what, where=str(folder.parent), fix=fix)
        return []


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors in the first process, and this process's rows of sharded tensors."""
    divided = {name: part for name, part in tensors.items() if is_divided(part) and writes(part)}
    named = {TENSORS: {name: part for name, part in tensors.items() if not is_divided(part)}}
    if not world.is_rank_zero():
        named = {}
    if divided:
        part, parts = place_of(next(iter(divided.values())))
        file = f"tensors-{part + 1:05d}-of-{parts:05d}.safetensors"
        named[file] = {name: own_part(whole) for name, whole in divided.items()}
    for name, contents in named.items():
        with TensorFile(folder / name, contents) as opened:
            for key, tensor in contents.items():
                opened.write(key, tensor)


def _is_right(file: Path, sums: Mapping[str, str]) -> bool:
    """Tell whether a file matches its digest. It never raises, because all processes wait for the answer."""
    try:
        return _digest(file) == sums.get(file.name)
    except OSError:
        return False


def step_name(step: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}"


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
