"""`posttrain where ROW`: find every copy of a row, and the runs that have read a copy.

Copies can be in files of the workspace and, by content, in objects of DVC's cache, its remotes, its run cache, and git.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from posttrain.files import file_digest
from posttrain.pipeline.lineage.query import Query, parse_query, place_of, texts_of
from posttrain.pipeline.lineage.runs import affected, model_made
from posttrain.pipeline.lineage.search import NotSearchedError, in_bytes, in_files, table_rows, workspace_files
from posttrain.pipeline.lineage.user_text import cache_folder, remotes
from posttrain.pipeline.lock.digests import listed, recorded
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.workspace import checkpoint_path, model_path

LISTED = 5
TOKENS = (Path(".dvc/tmp/tokens"), Path(".dvc/tmp/completions"))
"""Folders of token ids: of whole tables, and of completions."""
_NOTHING = "no copy found"


@dataclass
class RowCopies:
    """All copies of a row. Paths are relative to the workspace."""

    ids: Sequence[str]
    texts: Sequence[str]
    files: dict[str, list[int]] = field(default_factory=dict)
    """File in the workspace -> its rows (parquet) or lines."""
    tracked: list[str] = field(default_factory=list)
    """The files among them that git tracks."""
    runs: dict[str, str] = field(default_factory=dict)
    """Stage that must run again -> the input through which the row reached it."""
    models: list[str] = field(default_factory=list)
    """Models that were trained on it, directly or through another model."""
    checkpoints: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """The folders of token ids, if a table contains the row."""
    cache: dict[str, str] = field(default_factory=dict)
    """Object in DVC's cache -> its path in dvc.lock; empty for an older version."""
    cached_runs: list[str] = field(default_factory=list)
    commits: dict[str, list[str]] = field(default_factory=dict)
    """Path -> commits with a version that contains the row."""
    experiments: list[str] = field(default_factory=list)
    remote: dict[str, str] = field(default_factory=dict)
    """Object in a remote that is a folder on this machine -> the remote."""
    not_searched: dict[str, str] = field(default_factory=dict)
    """Other remotes and their addresses, which are not searched."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """File or object that could not be searched -> why."""


def where(row: str, form: Literal["words", "json"]) -> str:
    """Return every copy of the row, as text or JSON."""
    copies = find_copies(row)
    return json.dumps(asdict(copies), indent=2, ensure_ascii=False) if form == "json" else "\n".join(_lines(copies))


def find_copies(row: str) -> RowCopies:
    """Search for a row by id, by FILE:LINE or by a part of its text."""
    query = _completed(parse_query(row))
    copies, lock, cache = RowCopies(query.ids, query.texts), recorded(), cache_folder()
    copies.files, copies.unreadable = in_files(workspace_files(Path(), cache), query)
    if place := place_of(row):
        copies.files.setdefault(os.path.relpath(place[0]), [place[1]])
    copies.tracked = _tracked(copies.files)

    stored = _objects(cache / "files/md5", query)
    names = _names(lock, cache)
    copies.unreadable |= stored.unreadable
    copies.cache = {str(file): names.get(digest, "") for digest, file in stored.files.items()}
    digests = stored.digests | {file_digest(Path(path)) for path in copies.files}
    copies.cached_runs = [str(file) for file in _cached_runs(cache / "runs", digests)]
    copies.commits = _blobs(query, copies.unreadable)
    copies.experiments = _experiments(digests)
    for name, url in remotes().items():
        if "://" not in url:
            there = _objects(Path(url, "files/md5"), query)
            copies.unreadable |= there.unreadable
            copies.remote |= {str(file): name for file in there.files.values()}
        else:
            copies.not_searched[name] = url

    copies.runs = affected(lock, digests, copies.files)
    models = [output for name in copies.runs if (output := model_made(name))]
    copies.models = [str(model_path(model)) for model in models if model_path(model).exists()]
    copies.checkpoints = [str(checkpoint_path(model)) for model in models if any(checkpoint_path(model).glob("*"))]
    if any(path.startswith("data/") for path in (*copies.files, *copies.cache.values())):
        copies.tokens = [str(folder) for folder in TOKENS if any(folder.glob("*"))]
    return copies


def _completed(query: Query) -> Query:
    """Return the query with the ids of matching table rows; for only an id, with the texts of its row."""
    rows = table_rows(query, sorted(Path("data").rglob("*.parquet")))
    ids = dict.fromkeys([*query.ids, *(row["id"] for row in rows if "id" in row)])
    return replace(query, ids=tuple(ids), texts=query.texts or texts_of(rows))


def _names(lock: Mapping[str, Any], cache: Path) -> dict[str, str]:
    """Return digest -> path of every file in dvc.lock, including files in folders."""
    paths: dict[str, str] = {}
    for out in (out for entry in lock.values() for out in entry.get("outs", ())):
        digest = str(out.get("md5", ""))
        paths[digest] = out["path"]
        for file in listed(cache / "files/md5" / digest[:2] / digest[2:]) if digest.endswith(".dir") else ():
            paths[file["md5"]] = f"{out['path']}/{file['relpath']}"
    return paths


def _tracked(files: Mapping[str, Any]) -> list[str]:
    known = set(_git("ls-files", "-z").split("\0"))
    return [file for file in files if file in known]


@dataclass(frozen=True)
class _Objects:
    """Matching objects in a cache or remote: digest -> file, for objects with the row and folders that list them."""

    files: dict[str, Path]
    folders: dict[str, Path]
    unreadable: dict[str, str]

    @property
    def digests(self) -> set[str]:
        """The digests of all objects."""
        return {*self.files, *self.folders}


def _objects(folder: Path, query: Query) -> _Objects:
    """Return the matching objects under files/md5 of a cache."""
    stored = sorted(file for file in folder.glob("??/*") if file.is_file())
    rows, unreadable = in_files((file for file in stored if file.suffix != ".dir"), query)
    files, folders = {file.parent.name + file.name: file for file in map(Path, rows)}, {}
    for file in stored:
        if file.suffix == ".dir" and any(entry["md5"] in files for entry in listed(file)):
            folders[file.parent.name + file.name] = file
    return _Objects(files, folders, unreadable)


def _cached_runs(folder: Path, digests: Collection[str]) -> list[Path]:
    """Return the run cache's entries that contain one of these digests."""
    return [file for file in sorted(folder.glob("??/*/*")) if _names_one(file.read_text(encoding="utf-8"), digests)]


def _blobs(query: Query, unreadable: dict[str, str]) -> dict[str, list[str]]:
    """Return path -> commits with a matching version, including experiments and whatever git could still restore."""
    commits: dict[str, list[str]] = {}
    for path, blob in _stored(query, unreadable):
        log = _git("log", "--all", "--reflog", "--format=%h", f"--find-object={blob}").split()
        commits[path] = list(dict.fromkeys([*commits.get(path, []), *log]))
    return commits


def _experiments(digests: Collection[str]) -> list[str]:
    """Return the experiments whose dvc.lock contains one of these digests."""
    refs = _git("for-each-ref", "refs/exps", "--format=%(refname)").split()
    named = [ref for ref in refs if ref.count("/") > 3 and _names_one(_git("show", f"{ref}:./dvc.lock"), digests)]
    return [ref.rpartition("/")[2] for ref in named]


def _names_one(text: str, digests: Collection[str]) -> bool:
    return any(digest in text for digest in digests)


def _stored(query: Query, unreadable: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and name of every matching git object. Add those that could not be searched to `unreadable`."""
    listing = [line.partition(" ") for line in _git("rev-list", "--objects", "--all", "--reflog").splitlines()]
    paths = {name: path for name, _, path in listing if path}
    with tempfile.TemporaryFile() as names:
        names.write("\n".join([*paths, ""]).encode())
        names.seek(0)
        command = ["git", "cat-file", "--batch", "--buffer"]
        with subprocess.Popen(command, stdin=names, stdout=subprocess.PIPE) as batch:
            assert batch.stdout is not None
            for name, path in paths.items():
                _, kind, size = batch.stdout.readline().split()
                data = batch.stdout.read(int(size) + 1)[:-1]
                if kind != b"blob" or not data:
                    continue
                try:
                    rows = in_bytes(data, query)
                except NotSearchedError as error:
                    unreadable[f"{path} in git, object {name}"] = str(error)
                    continue
                if rows:
                    yield path, name


def _git(*words: str) -> str:
    """Return git's output; empty if this is not a git repository."""
    return (git_or_none(*words) or b"").decode()


def _lines(copies: RowCopies) -> Iterator[str]:
    yield f"looked for: {'; '.join(_few([*copies.ids, *(repr(text[:60]) for text in copies.texts)]))}"
    yield from [*_copies(copies), *_runs(copies)] or [_NOTHING]
    for name, url in copies.not_searched.items():
        yield f"not searched: the remote {name} ({url})"
    for file, why in copies.unreadable.items():
        yield f"could not be searched: {file} ({why})"


def _copies(copies: RowCopies) -> Iterator[str]:
    for file, places in copies.files.items():
        unit = "row" if file.endswith(".parquet") else "line"
        tracked = ", in git" if file in copies.tracked else ""
        yield f"file: {file} {unit} {', '.join(_few(list(map(str, places))))}{tracked}"
    for file in copies.tokens:
        yield f"token ids: {file} has those of whole tables or of answers to them"
    for file in copies.checkpoints:
        yield f"checkpoints: {file}"
    for file, path in copies.cache.items():
        yield f"cache: {file} ({path or 'not in the current dvc.lock'})"
    for file in copies.cached_runs:
        yield f"run cache: {file} names such an object, but has no text"
    for file, name in copies.remote.items():
        yield f"remote {name}: {file}"
    for path, commits in copies.commits.items():
        yield f"git: {path} in {', '.join(_few(commits)) or 'no commit'}"
    for name in copies.experiments:
        yield f"experiment: {name}"


def _runs(copies: RowCopies) -> Iterator[str]:
    for name, through in copies.runs.items():
        yield f"has read it, must run again: {name} (through {through})"
    for model in copies.models:
        yield f"model trained on it: {model}"


def _few(words: list[str]) -> list[str]:
    more = [f"and {len(words) - LISTED} more"] if len(words) > LISTED else []
    return [*words[:LISTED], *more]
