"""Tells Prefect of new and changed data files; a deployment with the matching trigger then runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from posttrain.errors import PipelineError

EVENT = "posttrain.data.changed"
PARTIAL = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")
Seen = dict[Path, tuple[int, int]]


def resource(folder: Path) -> str:
    """What the event is about, and what a trigger matches."""
    return f"posttrain.data.{folder.resolve()}"


def look(folder: Path) -> Seen:
    """Size and time of every file that is meant to be read."""
    seen: Seen = {}
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or file.name.endswith(PARTIAL):
            continue
        try:
            if file.is_file():
                status = file.stat()
                seen[file] = (status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue  # gone between listing and looking
    return seen


class Watch:
    """Remembers a folder; a file counts as arrived once two looks in a row saw it the same."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise PipelineError(what="there is no such folder", where=str(folder), fix="Make it, or name another")
        self.folder = folder
        self._known = self._last = look(folder)

    def arrived(self) -> list[Path]:
        """Files that are new or changed since they were last told of, and at rest now."""
        now, before = look(self.folder), self._last
        self._last = now
        fresh = [file for file, state in now.items() if self._known.get(file) != state and before.get(file) == state]
        # A file that is being written keeps its old entry, so that it is told of once it is at rest.
        self._known = {file: state if file in fresh else self._known.get(file, (-1, -1)) for file, state in now.items()}
        return fresh


def watch(eye: Watch, every: float, over: threading.Event, tell: Callable[[Path, Sequence[Path]], None]) -> None:
    """Look every so many seconds until `over` is set, and tell of what has arrived."""
    while not over.wait(every):
        if files := eye.arrived():
            tell(eye.folder, files)


def emit(folder: Path, files: Sequence[Path]) -> None:
    """One event for all files that arrived together."""
    from prefect.events import emit_event

    names = [str(file.relative_to(folder)) for file in files]
    print(f"new data in {folder}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}", flush=True)
    emit_event(EVENT, resource={"prefect.resource.id": resource(folder)}, payload={"files": names})
