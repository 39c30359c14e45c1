"""The active flow runs of this workspace. A run whose process was killed is marked as crashed."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Crashed

FOLDER = Path(".prefect/running")
"""A folder with a file per flow run, locked by its process. The kernel releases a killed process's lock."""


@contextmanager
def recorded(root: Path) -> Iterator[None]:
    """Record the current flow run while it is active. First mark killed flow runs."""
    mark_crashed(root)
    file = root / FOLDER / str(flow_run.id)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, stream)
        stream.flush()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def mark_crashed(root: Path) -> None:
    """Mark this workspace's flow runs on this host whose process has ended, and their started tasks."""
    gone = {file: pid for file in (root / FOLDER).glob("*") if (pid := _ended(file)) is not None}
    if not gone:
        return
    with get_client(sync_client=True) as client:
        for file, pid in gone.items():
            with suppress(HTTPError, ValueError):  # a server that does not answer: the next flow tries again
                _mark(client, UUID(file.name), pid)
                file.unlink(missing_ok=True)


def _ended(file: Path) -> int | None:
    """Return the process of a flow run that ran on this host and has ended; else None."""
    try:
        with file.open("r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process = json.load(stream)
            return int(process["pid"]) if process["host"] == socket.gethostname() else None
    except (OSError, ValueError, KeyError, TypeError):  # alive; just begun; or written by something else
        return None


def _mark(client: SyncPrefectClient, run_id: UUID, pid: int) -> None:
    try:
        state = client.read_flow_run(run_id).state
    except ObjectNotFound:  # another server's
        return
    if state is None or state.is_final():
        return
    crashed: Any = Crashed(message=f"its process {pid} ended silently: it was killed")
    for task in client.read_task_runs(flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run_id]}})):
        if task.state is None or not task.state.is_final():
            client.set_task_run_state(task.id, crashed, force=True)
    client.set_flow_run_state(run_id, crashed, force=True)
