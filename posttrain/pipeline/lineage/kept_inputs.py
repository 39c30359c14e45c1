"""Find inputs that are in neither git nor DVC's cache. Other clones, experiments and tags lack these inputs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.lineage.user_text import cache_folder
from posttrain.pipeline.lock.code_manifest import FOLDER, read_code
from posttrain.pipeline.lock.digests import LOCK, Digests, listed
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.lock.lock_shape import added_files, lock_stages
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import CUSTOM
from posttrain.settings.user_code import is_import_path, own_file

LISTED = 6
_PATTERN = "*.dvc"
_CACHED = Path("files/md5")
_NAMES = ("rename", "values", "template")
"""Settings whose texts are column names and words of a table, which may coincide with a folder's name."""


def unkept_inputs(overrides: Iterable[Mapping[str, Any]] = (), more: Iterable[str] = ()) -> list[str]:
    """Return the inputs that are in neither the last commit nor DVC's cache, as files and folders.

    Inputs are the files and folders named by values of params.yaml or of these overrides, the files in `custom` that a
    run can load, and `more`.
    """
    params = [read_yaml(PARAMS_FILE)] if Path(PARAMS_FILE).is_file() else []
    texts = list(_texts([*params, *overrides]))
    modules = [*(str(own_file(text.partition(":")[0])) for text in texts if is_import_path(text)), *_loaded()]
    named = {PurePosixPath(os.path.normpath(text)) for text in [*texts, *modules, *more] if _is_inside(text)}
    by_dvc = dict(tracked_by_dvc())
    others = git("ls-files", "-z", "--others", "--directory", "--no-empty-directory").split("\0")
    untracked = {PurePosixPath(entry) for entry in others if entry and "__pycache__" not in entry}
    edited = git("diff", "-z", "--name-only", "--relative", "HEAD").split("\0")
    changed = {PurePosixPath(entry) for entry in edited if entry}
    digests = Digests()
    asked = _overlapping(by_dvc, named)
    lost = {path for path in asked if not _is_kept(path, by_dvc[path][0], digests, added=by_dvc[path][1])}
    digests.keep()
    left = untracked.difference(_overlapping(untracked, by_dvc.keys() - lost))
    pairs = ((entry, path) for entry in _overlapping([*left, *changed], named) for path in named)
    pairs = ((entry, path) for entry, path in pairs if _overlap(entry, path))
    inputs = {max(pair, key=lambda path: len(path.parts)) for pair in pairs}
    return sorted(str(path) for path in inputs | {path for path in lost if by_dvc[path][1]})


def require_kept(where: str, overrides: Iterable[Mapping[str, Any]] = (), more: Iterable[str] = ()) -> None:
    """Raise if an input is neither in the last commit nor in DVC's cache."""
    if unkept := unkept_inputs(overrides, more):
        what = f"neither in git nor in DVC's cache: {_shown(unkept)}"
        raise PipelineError(what=what, where=where, fix=f"{_fix(unkept)}, then git commit")


def kept_note() -> str:
    """Return a note for `posttrain check`; empty if all inputs are stored, or without a repository or a commit."""
    if git_or_none("rev-parse", "--verify", "HEAD") is None:
        return ""
    try:
        unkept = unkept_inputs()
    except ParamsError:  # the check of params.yaml names it
        return ""
    if not unkept:
        return ""
    return (
        f"note: neither in git nor in DVC's cache: {_shown(unkept)}. Other clones lack it; sweeps, `posttrain promote`"
        f" and `push` stop. {_fix(unkept)}, then git commit"
    )


def is_in_cache(digest: str, cache: Path) -> bool:
    """Tell whether DVC's cache contains a file, or a folder's list and all of its files."""
    place = cache / _CACHED / digest[:2] / digest[2:]
    if not digest.endswith(".dir") or not place.is_file():
        return place.is_file()
    return all(is_in_cache(entry["md5"], cache) for entry in listed(place))


def _shown(paths: list[str]) -> str:
    return ", ".join(paths[:LISTED]) + (f" and {len(paths) - LISTED} more" if len(paths) > LISTED else "")


def _fix(paths: list[str]) -> str:
    elsewhere = [path for path in paths if not path.startswith((f"{CUSTOM}/", f"{FOLDER}/"))]
    data = next(
        (path for path in elsewhere if not git_or_none("ls-files", "--", path)), ""
    )  # else `dvc add` refuses it
    return f"git add them, or of data: dvc add {data}" if data else f"git add {paths[0]}"


def _loaded() -> Iterator[str]:
    """Yield the user's own files that a run can load, as listed by the stage `code`."""
    for file in FOLDER.rglob("*.json"):
        code = read_code(file)
        yield from (path for path in (code or {}).get("files", ()) if path.startswith(f"{CUSTOM}/"))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a nested value, including keys, which may name the user's own rewards."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from filter(is_import_path, value)
        for key, inner in value.items():
            if key not in _NAMES:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_inside(text: str) -> bool:
    """Tell whether a text names a file or folder in this folder. Absolute paths do not count."""
    path = os.path.normpath(text)
    inside = path != "." and not path.startswith(("/", "..")) and "\0" not in text
    return inside and os.path.exists(path)  # noqa: PTH110  Path's own raises where a text is too long for a name


def _overlap(path: PurePosixPath, other: PurePosixPath) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _overlapping(paths: Iterable[PurePosixPath], others: Collection[PurePosixPath]) -> list[PurePosixPath]:
    """The paths that contain one of the others or lie in one. Sets, since a study has a thousand of each."""
    exact, above = set(others), {parent for other in others for parent in other.parents}
    return [path for path in paths if path in exact or path in above or not exact.isdisjoint(path.parents)]


def tracked_by_dvc() -> Iterator[tuple[PurePosixPath, tuple[str, bool]]]:
    """Yield outputs of stages and paths of `dvc add`, each with its digest and True if `dvc add` added it."""
    lock = Path(LOCK)
    entries = lock_stages(lock.read_bytes(), LOCK) if lock.is_file() else {}
    for out in (out for entry in entries.values() for out in entry.get("outs") or ()):
        yield PurePosixPath(os.path.normpath(out["path"])), (out.get("md5", ""), False)
    added = git_or_none("ls-files", "-z", _PATTERN) or b""
    for file in (Path(name) for name in added.decode().split("\0") if Path(name).is_file()):
        for out in added_files(file.read_bytes(), str(file)):
            yield PurePosixPath(os.path.normpath(file.parent / out["path"])), (out.get("md5", ""), True)


def _is_kept(path: PurePosixPath, digest: str, digests: Digests, *, added: bool) -> bool:
    """Tell whether the cache has it. Content of `dvc add` must also be unchanged; `code` is not in the cache."""
    if not digest:  # of another kind of digest than md5
        return True
    return is_in_cache(digest, cache_folder()) and not (added and digests.of(str(path)) not in (digest, None))
