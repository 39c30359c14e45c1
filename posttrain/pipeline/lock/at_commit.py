"""Check whether the results in a commit's dvc.lock belong to the commit's settings, models, code and files."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from posttrain.pipeline.lock.code_digest import normalised
from posttrain.pipeline.lock.code_manifest import CODE, FOLDER, code_path, read_code
from posttrain.pipeline.lock.digests import LOCK, listed
from posttrain.pipeline.lock.fsync import cache_folder, object_path
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.lock.graph import DVC_YAML
from posttrain.pipeline.lock.lock_shape import added_files
from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.lock.run_records import RunRecords
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

MOST: Final = 3
"""The most files in a line."""


class AtCommit(Reasons):
    """Find what is out of date in a commit: compare its entries with the commit's settings, code and files."""

    def __init__(self, commit: str, folder: Path) -> None:
        """Write the commit's relevant files into an empty folder."""
        self._commit, self._folder = commit, folder
        self._blobs = _blobs(commit)
        self._extract([DVC_YAML, PARAMS_FILE, LOCK, ".dvcignore", FOLDER.as_posix()])
        if (folder / DVC_YAML).is_file():
            sources = read_yaml(folder / DVC_YAML).get("vars") or ()
            self._extract([source.partition(":")[0] for source in sources if isinstance(source, str)])
        super().__init__(folder)
        self._extract({file for stage in self.pipeline.stages.values() for file in stage.params})
        self.records = RunRecords()  # in the cache of the workspace
        self._cache = cache_folder(Path())

    def of_run(self, stage: str) -> list[str]:
        """Return lines with the reasons why a stage or one of its inputs does not match the commit."""
        chain = [name for name in self.pipeline.above(stage) if name != CODE]
        return [f"{name}: {'; '.join(why)}" for name in chain if (why := self.of(name))]

    def _code_digest(self, name: str) -> str | None:
        return self._digests.of(code_path(name).as_posix())

    def _code_changes(self, name: str) -> list[str]:
        return [f"the code of {name} changed"]

    def _deps(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        yield from super()._deps(name, entry)
        if edited := self._edited(name):
            more = f" and {len(edited) - MOST} more" if len(edited) > MOST else ""
            yield f"{', '.join(edited[:MOST])}{more} changed after the stage `code` ran"

    def _edited(self, name: str) -> list[str]:
        """Return the commit's files that differ from those that its code/ lists for a stage."""
        code = read_code(self._folder / code_path(name))
        named = {} if code is None else code.get("files", {})
        held = {file: blob for file in named if (blob := self._blobs.get(file)) is not None}
        return [file for file, blob in held.items() if _digest(file, blob) != named[file]]

    def _source(self, path: str, known: str | None) -> str | None:
        """Return the commit's digest of a dependency; the recorded one if it is in neither git nor DVC."""
        outs = [out for entry in self.lock.values() for out in entry.get("outs", ())]
        held = next((out for out in outs if path.startswith(f"{out['path']}/")), None)
        if held is not None:  # a file in the folder of an output: DVC's list of the folder names it
            digests = {
                one["relpath"]: one["md5"] for one in listed(object_path(self._cache, held.get("md5") or "none"))
            }
            return digests.get(path.removeprefix(f"{held['path']}/"), known)
        tracked = git_or_none("show", f"{self._commit}:./{path}.dvc")
        if tracked is not None:
            return next((out.get("md5") for out in added_files(tracked, path)), known)
        if any(file == path or file.startswith(f"{path}/") for file in self._blobs):
            self._extract([path])
            return self._digests.of(path)
        return known

    def _outs(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        known = {out["path"] for out in entry.get("outs", ())}
        yield from (f"{path} is a new output" for path in self.pipeline.stages[name].outs if path not in known)

    def _extract(self, paths: Collection[str]) -> None:
        """Write these files and folders of the commit into the folder."""
        wanted = [path for path in paths if any(file == path or file.startswith(f"{path}/") for file in self._blobs)]
        content = git_or_none("archive", "--format=tar", self._commit, "--", *wanted) if wanted else None
        if content:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(self._folder, **_SAFE)


_SAFE: Final[dict[str, Any]] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Options of `extractall`. Debian's Python 3.11.2 has no filters, but a git tree has no path that leads out of it."""


def _blobs(commit: str) -> dict[str, str]:
    """Return path -> git object name, for all files of a commit below this folder."""
    lines = git("ls-tree", "-r", "-z", commit).split("\0")
    return {path: words.split()[2] for words, _, path in (line.partition("\t") for line in lines if line)}


@lru_cache(maxsize=4096)
def _digest(file: str, blob: str) -> str:
    """Return the digest of a code file from its content in git."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, Path(file).name)
        copy.write_bytes(git_or_none("cat-file", "blob", blob) or b"")
        return normalised(copy)
