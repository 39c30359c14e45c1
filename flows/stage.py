"""The flow that a host with `posttrain workers` serves: one stage, in the host's own clone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from posttrain.errors import PosttrainError

from .hosts import run_stage


@flow(name="stage", log_prints=True, persist_result=False)
def stage(name: str, commit: str, timeout: float | None = None) -> State[Any]:
    """Pull, run and push one stage at one commit."""
    try:
        run_stage(Path.cwd(), name, commit, timeout)
    except PosttrainError as error:
        return Failed(message=str(error))
    return Completed(message=f"{name} is in the remote's run cache")
