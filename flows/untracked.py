"""Inputs that neither git nor DVC tracks: a copy of the workspace and another clone lack them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from posttrain.params.formats import read_yaml
from posttrain.params.params import PARAMS_FILE
from posttrain.params.user_code import is_import_path, own_file
from posttrain.pipeline.git import git


def untracked_inputs(overrides: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return the untracked files and folders that a value of params.yaml or of these overrides names."""
    params = [read_yaml(PARAMS_FILE)] if Path(PARAMS_FILE).is_file() else []
    texts = list(_texts([*params, *overrides]))
    own = [str(own_file(text.partition(":")[0])) for text in texts if is_import_path(text)]
    named = {PurePosixPath(os.path.normpath(text)) for text in [*texts, *own] if _is_inside(text)}
    listing = git("ls-files", "-z", "--others", "--directory", "--no-empty-directory").split("\0")
    untracked = {PurePosixPath(entry) for entry in listing if entry}
    in_dvc = set(_tracked_by_dvc())
    inputs = {entry for entry in untracked if any(_overlap(entry, path) for path in named)}
    return sorted(str(entry) for entry in inputs if not any(_overlap(entry, path) for path in in_dvc))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a nested value, and the user's own rewards, which are keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from filter(is_import_path, value)
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_inside(text: str) -> bool:
    """Return whether a text names a file or folder in this one; an absolute path is the same from everywhere."""
    path = os.path.normpath(text)
    inside = path != "." and not path.startswith(("/", "..")) and "\0" not in text
    return inside and os.path.exists(path)  # noqa: PTH110  Path's own raises where a text is too long for a name


def _overlap(path: PurePosixPath, other: PurePosixPath) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _tracked_by_dvc() -> Iterator[PurePosixPath]:
    """Yield the outputs of the stages and the paths of `dvc add`."""
    for name in ["dvc.lock", *git("ls-files", "-z", "*.dvc").split("\0")]:
        if Path(name).is_file():
            data = read_yaml(Path(name))
            for stage in [data, *(data.get("stages") or {}).values()]:
                for out in stage.get("outs") or ():
                    yield PurePosixPath(os.path.normpath(Path(name).parent / stage.get("wdir", ".") / out["path"]))
