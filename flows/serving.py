"""Serves a flow from this process until Ctrl-C or SIGTERM, which end what runs and pause its schedules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import psutil
from prefect import Flow
from prefect.runner import Runner


class _Runner(Runner):
    """Prefect's runner; its own answer to SIGTERM is a traceback, schedules that stay on and a run that goes on."""

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:
        for child in psutil.Process().children():
            # The runs; a temporary server has a group of its own and ends after them. Ctrl-C reaches them by itself.
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(child.pid) == os.getpgrp():
                    child.terminate()
        signal.raise_signal(signal.SIGINT)


def serve(flow: Flow[..., Any], name: str, limit: int | None = None, **deployment: Any) -> None:
    """Make the deployment and run what it is asked for."""
    runner = _Runner(name=name, pause_on_shutdown=True, limit=limit)
    runner.add_flow(flow, name=name, **deployment)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(runner.start())
