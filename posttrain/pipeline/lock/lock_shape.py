"""Parse the text of a dvc.lock or a `dvc add` file, and reject one that DVC cannot have written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.pipeline.params.parsed import parsed_once

FIX: Final = "Run `posttrain repair merge` after a merge conflict, else `posttrain repair`"


def lock_stages(text: bytes | str, where: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a dvc.lock by stage."""
    stages = lock_data(text, where).get("stages") or {}
    if not isinstance(stages, dict):
        raise _odd("stages", stages, where, FIX)
    for name, entry in stages.items():
        if not isinstance(entry, Mapping):
            raise _odd(f"stages.{name}", entry, where, FIX)
        for kind in ("deps", "outs"):
            _check_files(entry.get(kind), f"stages.{name}.{kind}", where, FIX)
        params = entry.get("params", {})
        if not isinstance(params, Mapping) or not all(isinstance(part, Mapping) for part in params.values()):
            raise _odd(f"stages.{name}.params", params, where, FIX)
    return stages


def lock_data(text: bytes | str, where: str) -> dict[str, Any]:
    """Return the content of a dvc.lock, from a cache if an earlier process has parsed it."""
    entries: dict[str, Any] = parsed_once(text, Path(where).name, lambda: _read(text, where, FIX))
    return entries


def added_files(text: bytes | str, where: str) -> list[dict[str, Any]]:
    """Return the outputs that a `.dvc` file lists, with paths from its folder."""
    fix = "Restore it from git, or `dvc add` the data again"
    data = _read(text, where, fix)
    _check_files(data.get("outs"), "outs", where, fix)
    folder = str(data.get("wdir", "."))
    return [{**out, "path": os.path.normpath(Path(folder, out["path"]))} for out in data.get("outs") or ()]


def _read(text: bytes | str, where: str, fix: str) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe").load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise PipelineError(what="it cannot be read", where=where, fix=fix) from error
    if not isinstance(data, dict | None):
        raise _odd("the file", data, where, fix)
    return data or {}


def _check_files(files: Any, key: str, where: str, fix: str) -> None:
    if files is None:
        return
    if not isinstance(files, list):
        raise _odd(key, files, where, fix)
    for place, file in enumerate(files):
        path = file.get("path") if isinstance(file, Mapping) else None
        digest = file.get("md5", "") if isinstance(file, Mapping) else None
        if not isinstance(path, str) or not isinstance(digest, str) or "\0" in path:
            raise _odd(f"{key}[{place}]", file, where, fix)


def _odd(key: str, value: object, where: str, fix: str) -> PipelineError:
    return PipelineError(what=f"DVC did not write it: {key} is {value!r:.60}", where=where, fix=fix)
