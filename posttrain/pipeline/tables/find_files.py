"""Find the files of a path and the split of each file, without opening files outside the workspace."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from posttrain.data.shown import printable
from posttrain.data.splits import SPLIT_NAMES
from posttrain.errors import DataError
from posttrain.files import is_outside
from posttrain.pipeline.tables.failures import first_line
from posttrain.pipeline.tables.readers import PLAIN, READERS, CsvDialect, Part, file_part

Parts = dict[str, list[Part]]
"""The source's name of a split -> its files or Hub tables."""

_WILDCARDS: Final = frozenset("*?[")


def matches(path: str, root: Path) -> list[Path] | None:
    """Return the files that match a pattern such as `part-*.jsonl`, outside hidden folders; None for a plain name."""
    folder, parts = root, list(Path(path).parts)
    while parts and (not set(parts[0]) & _WILDCARDS or (folder / parts[0]).exists()):
        folder /= parts.pop(0)
    if not parts:
        return None
    files = folder.glob(str(Path(*parts)))
    return [file for file in files if not _hidden(file.relative_to(folder).parts[:-1])]


def _hidden(names: Iterable[str]) -> bool:
    return any(name.startswith((".", "_")) for name in names)


@dataclass
class FileFinder:
    """Finds the files of one source. `ignored` collects names in a folder that are not read."""

    where: str
    outside_workspace: bool
    dialect: CsvDialect = PLAIN
    ignored: list[str] = field(default_factory=list)

    def find(self, path: str, root: Path, names: Collection[str]) -> Parts:
        """Return the files at `path` in `root` by split. `names`: additional split names."""
        place = root / path
        if not self.outside_workspace and not Path(os.path.abspath(place)).is_relative_to(os.path.abspath(root)):
            fix = "Use a file or folder in the workspace, or set outside_workspace: true"
            raise self._error(f"{path} is not in the folder {root}", fix)
        self._check_inside(place)
        if place.is_file():
            files = _by_first_word([place], names)
        elif (matched := matches(path, root)) is not None:
            files = self._by_name(matched, f"no data file matches {place}", names)
        elif not place.is_dir():
            raise self._error(f"{place} not found", "Fix the path")
        elif (place / "dataset_dict.json").exists():
            splits = self._listed(place / "dataset_dict.json", "splits")
            files = {name: self._saved(place / name) for name in splits}
        elif (place / "state.json").exists():
            files = {"train": self._saved(place)}
        else:
            files = self._by_name(list(place.iterdir()), f"the folder {place} has no data files", names)
        return {name: [self._part(file) for file in some] for name, some in files.items()}

    def _by_name(self, paths: list[Path], none: str, names: Collection[str]) -> dict[str, list[Path]]:
        """Return the data files of a folder or a pattern by split."""
        visible = sorted(path for path in paths if not _hidden([path.name]))
        files = [path for path in visible if path.suffix.lower() in READERS and not path.is_dir()]
        self.ignored = [printable(path.name) + "/" * path.is_dir() for path in visible if path not in files]
        if not files:
            raise self._error(none, f"Add files that end in {_SUFFIXES}; names that begin with . or _ are not read")
        return _by_first_word(files, names)

    def _saved(self, folder: Path) -> list[Path]:
        """Return the files of a folder written by `save_to_disk` of the datasets library."""
        return [folder / name for name in self._listed(folder / "state.json", "_data_files")]

    def _listed(self, file: Path, key: str) -> list[str]:
        """Return the names that a file of `save_to_disk` lists under a key."""
        self._check_inside(file)
        try:
            listed = json.loads(file.read_text(encoding="utf-8"))[key]
            names = [entry["filename"] if isinstance(entry, dict) else entry for entry in listed]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._error(f"{file} cannot be read ({first_line(error)})", "Save the data set again") from error
        if not names or not all(
            isinstance(name, str) and Path(name).parts == (name,) and name != ".." for name in names
        ):
            raise self._error(f"{file} does not list names under '{key}'", "Save the data set again")
        return names

    def _part(self, file: Path) -> Part:
        self._check_inside(file)
        if not file.is_file():
            raise self._error(f"{file} is not a file", "Fix the path")
        if file.suffix.lower() not in READERS:
            raise self._error(f"{file} has an unknown file type", f"Give a file that ends in {_SUFFIXES}")
        try:
            return file_part(file, self.dialect)
        except DataError as error:
            raise self._error(error.what, error.fix) from error

    def _check_inside(self, place: Path) -> None:
        if not self.outside_workspace and is_outside(place):
            fix = "Copy the data into the workspace, or set outside_workspace: true"
            raise self._error(f"{place} is outside the workspace", fix)

    def _error(self, what: str, fix: str) -> DataError:
        return DataError(what=printable(what), where=self.where, fix=printable(fix))


def _by_first_word(files: list[Path], names: Collection[str]) -> dict[str, list[Path]]:
    """Return files by the first word of their names: `train-00000-of-00002.parquet` belongs to `train`."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(file.stem.split("-")[0].split(".")[0], []).append(file)
    known = any(name in names or name.lower() in SPLIT_NAMES for name in groups)
    return groups if known else {"train": files}


_SUFFIXES: Final = ", ".join(READERS)
