"""Serve a flow from this process until Ctrl-C or SIGTERM, which end its runs and pause its schedules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from httpx import HTTPError
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

_POLL = 0.3


class _Runner(Runner):
    """Prefect's runner with its own SIGTERM handler and folder. Prefect's handler leaves schedules and runs active.

    Prefect's own folder, `runner_storage` in the temporary folder, belongs to the host's first user.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._tmp_dir = Path(tempfile.mkdtemp(prefix="posttrain-flows-"))  # removed at the end by Prefect

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:
        threading.Thread(target=_end_runs, daemon=True).start()
        signal.raise_signal(signal.SIGINT)


def _end_runs() -> None:
    """Send SIGTERM to the runs, including one that is just starting. Ctrl-C reaches them directly."""
    signalled: set[int] = set()
    while True:
        for child in psutil.Process().children():
            # A temporary server has a group of its own and ends after the runs.
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if child.pid not in signalled and os.getpgid(child.pid) == os.getpgrp():
                    child.terminate()
                    signalled.add(child.pid)
        time.sleep(_POLL)


def serve(flow: Flow[..., Any], name: str, limit: int | None = None, **deployment: Any) -> None:
    """Create the deployment and run its flow runs."""
    runner = _Runner(name=name, pause_on_shutdown=True, limit=limit)
    # By its module: the flow's file imports others of its package.
    runner.add_flow(flow, name=name, entrypoint_type=EntrypointType.MODULE_PATH, **deployment)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(runner.start())
    finally:
        _pause_triggers(f"{flow.name}/{name}")


def _pause_triggers(deployment: str) -> None:
    """Pause the automations that start runs on new data. Nobody would execute these runs."""
    with contextlib.suppress(HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
        deployed = client.read_deployment_by_name(deployment)
        for automation in client.read_resource_related_automations(f"prefect.deployment.{deployed.id}"):
            client.pause_automation(automation.id)
