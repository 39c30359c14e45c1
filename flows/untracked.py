"""What stages read and neither git nor DVC keeps: a copy of the workspace and another clone lack it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from posttrain.compare.experiments import git
from posttrain.params import PARAMS_FILE, read_yaml
from posttrain.user_code import is_import_path, own_file


def untracked_inputs(overrides: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """The untracked files and folders that a value of params.yaml, or of these overrides, names, is in, or holds."""
    params = [read_yaml(PARAMS_FILE)] if Path(PARAMS_FILE).is_file() else []
    texts = list(_texts([*params, *overrides]))
    own = [str(own_file(text.partition(":")[0])) for text in texts if is_import_path(text)]
    named = {PurePosixPath(os.path.normpath(text)) for text in [*texts, *own] if _is_inside(text)}
    listed = git("ls-files", "-z", "--others", "--directory", "--no-empty-directory").split("\0")
    left = {PurePosixPath(entry) for entry in listed if entry}
    kept = set(_kept_by_dvc())
    meant = {entry for entry in left if any(_meet(entry, path) for path in named)}
    return sorted(str(entry) for entry in meant if not any(_meet(entry, path) for path in kept))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a nested value, and the user's own rewards, which are keys."""
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
    """Whether a text names something in this folder; an absolute path is the same from everywhere."""
    path = os.path.normpath(text)
    inside = path != "." and not path.startswith(("/", "..")) and "\0" not in text
    return inside and os.path.exists(path)  # noqa: PTH110  Path's own raises where a text is too long for a name


def _meet(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _kept_by_dvc() -> Iterator[PurePosixPath]:
    """The outputs of the stages and what was added by `dvc add`."""
    for name in ["dvc.lock", *git("ls-files", "-z", "*.dvc").split("\0")]:
        if Path(name).is_file():
            found = read_yaml(Path(name))
            for stage in [found, *(found.get("stages") or {}).values()]:
                for out in stage.get("outs") or ():
                    yield PurePosixPath(os.path.normpath(Path(name).parent / stage.get("wdir", ".") / out["path"]))
