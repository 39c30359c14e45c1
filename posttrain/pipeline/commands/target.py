"""Check where a command may write a file for the user: never over settings, code, data or results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from posttrain.errors import ParamsError

BEGINS: Final = {".html": b"<!doctype html", ".json": b'[{"run":', ".gguf": b"gguf"}
"""Suffix -> how a file from such a command begins, in lower case and without spaces."""
_OTHER: Final = "Write another name"


def target(name: str, option: str, suffix: str) -> Path:
    """Return the path in an option. Raise if the command may not write a file of this kind there."""
    path = Path(name)
    if path.suffix.lower() != suffix:
        raise _refused(
            path, f"its name does not end with {suffix}", option, f"Write a name such as {path.stem}{suffix}"
        )
    if path.is_dir():
        raise _refused(path, "it is a folder", option, f"Write the name of a file: {path / f'page{suffix}'}")
    for what in _owned(path):
        raise _refused(path, what, option, _OTHER)
    if path.is_file() and not _begins(path, BEGINS[suffix]):
        raise _refused(path, "a file that no such command wrote is there", option, f"Remove it, or {_OTHER.lower()}")
    return path


def folder_target(name: str, option: str) -> Path:
    """Return the folder in an option. Raise if a command may not write files into it."""
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise _refused(path, "it is not a folder", option, _OTHER)
    for what in _owned(path):
        raise _refused(path, what, option, _OTHER)
    return path


def _refused(path: Path, what: str, option: str, fix: str) -> ParamsError:
    return ParamsError(what=f"posttrain does not write to '{path}': {what}", where=option, fix=fix)


def _begins(path: Path, with_what: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(200).lower().replace(b"\n", b"").replace(b" ", b"").startswith(with_what.replace(b" ", b""))


def _owned(path: Path) -> Iterator[str]:
    """Yield why a path belongs to git or DVC's graph. Links are followed."""
    from posttrain.pipeline.lock.git import git_or_none

    real = path.resolve()
    above = next(folder for folder in real.parents if folder.is_dir())
    if git_or_none("ls-files", "-z", "--", os.path.relpath(real, above), root=above):
        yield "git tracks it" if not real.is_dir() else "git tracks files in it"
    root = Path.cwd().resolve()
    if real.is_relative_to(root):
        inside = PurePosixPath(real.relative_to(root))
        for owned in _outputs():
            if inside.is_relative_to(owned) or owned.is_relative_to(inside):
                yield f"{owned} is an output or an input of dvc.yaml"
                return


def _outputs() -> Iterator[PurePosixPath]:
    """Yield the paths that DVC tracks in this workspace or that its stages read."""
    from posttrain.pipeline.lineage.kept_inputs import tracked_by_dvc
    from posttrain.pipeline.lock.graph import DVC_YAML, Pipeline

    if not Path(DVC_YAML).is_file():
        return
    for stage in Pipeline().stages.values():
        yield from (PurePosixPath(os.path.normpath(path)) for path in (*stage.outs, *stage.deps, *stage.params))
    yield from (path for path, _ in tracked_by_dvc())
