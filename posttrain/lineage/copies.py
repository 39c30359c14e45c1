"""Copies that are kept by content: in DVC's cache and remotes, in its run cache, and in git with its experiments."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from posttrain.lineage.query import Query
from posttrain.lineage.search import in_bytes, in_file
from posttrain.pipeline.digests import listed
from posttrain.pipeline.git import git_or_none


@dataclass(frozen=True)
class Objects:
    """Objects of a cache or a remote: digest -> file, of those that hold it, and of the folders that list these."""

    files: dict[str, Path]
    folders: dict[str, Path]

    @property
    def digests(self) -> set[str]:
        """All of them."""
        return {*self.files, *self.folders}


def objects(folder: Path, query: Query) -> Objects:
    """Return the objects under files/md5 of a cache that hold it."""
    files, folders = {}, {}
    stored = sorted(file for file in folder.glob("??/*") if file.is_file())
    for file in stored:
        if file.suffix != ".dir" and in_file(file, query):
            files[file.parent.name + file.name] = file
    for file in stored:
        if file.suffix == ".dir" and any(entry["md5"] in files for entry in listed(file)):
            folders[file.parent.name + file.name] = file
    return Objects(files, folders)


def cached_runs(folder: Path, digests: Collection[str]) -> list[Path]:
    """Return the entries of the run cache that name one of these digests."""
    return [file for file in sorted(folder.glob("??/*/*")) if _names(file.read_text(encoding="utf-8"), digests)]


def blobs(query: Query) -> dict[str, list[str]]:
    """Path -> commits that wrote a version of it which holds it; experiments and what git would still restore count."""
    found: dict[str, list[str]] = {}
    for path, blob in _stored(query):
        log = _git("log", "--all", "--reflog", "--format=%h", f"--find-object={blob}").split()
        found[path] = list(dict.fromkeys([*found.get(path, []), *log]))
    return found


def experiments(digests: Collection[str]) -> list[str]:
    """Return the experiments whose dvc.lock names one of these digests."""
    refs = _git("for-each-ref", "refs/exps", "--format=%(refname)").split()
    named = [ref for ref in refs if ref.count("/") > 3 and _names(_git("show", f"{ref}:./dvc.lock"), digests)]
    return [ref.rpartition("/")[2] for ref in named]


def _names(text: str, digests: Collection[str]) -> bool:
    return any(digest in text for digest in digests)


def _stored(query: Query) -> Iterator[tuple[str, str]]:
    """Path and name of every object of git's that holds it."""
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
                if kind == b"blob" and data and in_bytes(data, query):
                    yield path, name


def _git(*words: str) -> str:
    """Return what git says; nothing where this is no repository of git."""
    return (git_or_none(*words) or b"").decode()
