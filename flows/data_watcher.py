"""Send Prefect an event for new and changed data files, which starts deployments with a matching trigger."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from posttrain.errors import PipelineError
from posttrain.measure.terminal import escaped

EVENT = "posttrain.data.changed"
PARTIAL = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")
"""File name endings of files that are still being written."""
Snapshot = dict[Path, tuple[int, int]]
"""File -> its size and last modification time."""


def project_path(root: Path, folder: Path) -> Path:
    """Return a folder's path relative to the project, equal in every clone; outside the project, the absolute path."""
    for place in (Path(os.path.abspath(folder)), folder.resolve()):
        if place.is_relative_to(root):
            return place.relative_to(root)
    return folder.resolve()


def resource_id(folder: Path) -> str:
    """Return the resource of the event, which triggers match."""
    return f"posttrain.data.{folder.as_posix()}"


def take_snapshot(folder: Path) -> Snapshot:
    """Return size and time of every file, except hidden and unfinished files."""
    snapshot: Snapshot = {}
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or file.name.endswith(PARTIAL):
            continue
        try:
            if file.is_file():
                status = file.stat()
                snapshot[file] = (status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue  # removed since it was listed
    return snapshot


class FolderWatcher:
    """Finds new and changed files. A change counts once two consecutive snapshots agree."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise PipelineError(what="folder not found", where=str(folder), fix="Create it, or choose another folder")
        self.folder = folder
        self._reported = self._last = take_snapshot(folder)

    def changed(self) -> list[Path]:
        """Return files that are new or changed since the last call and are not being written now."""
        now, before = take_snapshot(self.folder), self._last
        self._last = now
        files = [file for file, state in now.items() if self._reported.get(file) != state and before.get(file) == state]
        # A file that is being written keeps its old entry, so that it is returned once it is finished.
        self._reported = {
            file: state if file in files else self._reported.get(file, (-1, -1)) for file, state in now.items()
        }
        return files


def watch(
    watcher: FolderWatcher, interval: float, stop: threading.Event, on_change: Callable[[Path, Sequence[Path]], None]
) -> None:
    """Call `on_change` with new and changed files. Check every `interval` seconds until `stop` is set."""
    said = ""
    while not stop.wait(interval):
        try:
            files = watcher.changed()
        except OSError as error:  # a folder that vanished during the look, or a network disk that does not answer
            if str(error) != said:
                print(escaped(f"{watcher.folder} cannot be looked through now: {error}"), file=sys.stderr, flush=True)
            said = str(error)
            continue
        said = ""
        if files:
            on_change(watcher.folder, files)


def emit_changed(folder: Path, files: Sequence[Path]) -> None:
    """Send one event for all files that changed together."""
    from prefect.events import emit_event

    names = [str(file.relative_to(folder)) for file in files]
    print(escaped(f"new data in {folder}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"), flush=True)
    emit_event(EVENT, resource={"prefect.resource.id": resource_id(folder)}, payload={"files": names})
