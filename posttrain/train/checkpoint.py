"""Checkpoints: whole or absent, checksummed, named by the fingerprint of everything that the run depends on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.errors import CheckpointError

KEPT = 2


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: named tensors and plain data."""

    step: int
    tensors: dict[str, Tensor]
    plain: dict[str, Any]


def fingerprint(stage: str, params: Any, inputs: list[Path]) -> str:
    """A digest of the stage, its parameters, its input files, the library's loaded code and torch's version."""
    digest = hashlib.sha256(f"{stage}\n{torch.__version__}\n".encode())
    digest.update(json.dumps(params, sort_keys=True, default=str).encode())
    for name in sorted(name for name in sys.modules if name.split(".")[0] in ("posttrain", "stages")):
        file = getattr(sys.modules[name], "__file__", None)
        if file:
            digest.update(name.encode() + Path(file).read_bytes())
    for path in inputs:
        files = [path] if path.is_file() else sorted(part for part in path.rglob("*") if part.is_file())
        for file in files:
            digest.update(f"{file.as_posix()}\n".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Checkpoints:
    """The checkpoints of one run, in `checkpoints/STAGE/FINGERPRINT/step-N` under the main workspace."""

    def __init__(self, stage: str, mark: str) -> None:
        root = Path(os.environ.get("DVC_ROOT") or ".")
        self._stage = root / "checkpoints" / stage.replace("@", "/")
        self._folder = self._stage / mark

    def save(self, saved: Saved) -> None:
        """Write one checkpoint; it appears under its name only when it is whole."""
        self._drop_foreign()
        target = self._folder / f"step-{saved.step:08d}"
        fresh = self._folder / f".{target.name}.{os.getpid()}"
        fresh.mkdir(parents=True, exist_ok=True)
        tensors = {name: part.detach().cpu().contiguous() for name, part in saved.tensors.items()}
        save_file(tensors, str(fresh / "tensors.safetensors"))
        plain = json.dumps({"step": saved.step, **saved.plain})
        (fresh / "state.json").write_text(plain, encoding="utf-8")
        sums = {name: _digest(fresh / name) for name in ("tensors.safetensors", "state.json")}
        (fresh / "sums.json").write_text(json.dumps(sums), encoding="utf-8")
        for file in fresh.iterdir():
            _sync(file)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(fresh, target)
        _sync(self._folder)
        for old in self._all()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Saved | None:
        """The newest whole checkpoint; a damaged one is named on stderr and passed over."""
        for folder in reversed(self._all()):
            try:
                return _read(folder)
            except CheckpointError as error:
                print(f"checkpoint passed over: {error}", file=sys.stderr)
        return None

    def clear(self) -> None:
        """Remove the run's checkpoints: its result is written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    def _drop_foreign(self) -> None:
        """Checkpoints of the same stage with other inputs can never be used again."""
        if self._stage.is_dir():
            for folder in self._stage.iterdir():
                if folder != self._folder and any(folder.glob("*step-*")):
                    shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path) -> Saved:
    try:
        sums = json.loads((folder / "sums.json").read_text(encoding="utf-8"))
        for name, expected in sums.items():
            if _digest(folder / name) != expected:
                raise CheckpointError(what=f"{name} does not match its checksum", where=str(folder), mend="Delete it")
        plain = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(str(folder / "tensors.safetensors"))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(what=f"cannot be read ({error})", where=str(folder), mend="Delete it") from error
    return Saved(int(plain.pop("step")), tensors, plain)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
