"""GPU slots: one Prefect global concurrency limit per host, used only by stages with gpus in `meta`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from posttrain.errors import PipelineError

from .graph import Stage

_POLL = 1.0
_LOCKED = 423  # the HTTP status when all slots are in use
_LEASE = 60.0  # seconds until the slots of a flow that was killed with -9 are free again


class GpuSlots:
    """Assigns this host's GPUs to the stages of one flow, coordinated with other flows on the same server."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.name = f"gpu-{socket.gethostname()}"
        self._free = devices()
        self._lock = threading.Lock()
        needed = max((stage.needs.gpus for stage in stages), default=0)
        if needed:
            self._ensure_limit(needed)

    @contextmanager
    def acquire(self, stage: Stage, cancel: threading.Event) -> Iterator[dict[str, str]]:
        """Wait for the stage's slots until `cancel` is set, and hold them. Yield its CUDA_VISIBLE_DEVICES."""
        if not stage.needs.gpus:
            yield {}
            return
        slot = self._wait(stage.needs.gpus, cancel)
        if slot is None:
            yield {}
            return
        gpus = self._pick(stage.needs.gpus)
        try:
            yield {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        finally:
            with self._lock:
                self._free = sorted([*self._free, *gpus])
            slot.__exit__(None, None, None)

    def _wait(self, count: int, cancel: threading.Event) -> AbstractContextManager[None] | None:
        """Return the acquired slots; None once `cancel` is set."""
        from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
        from prefect.concurrency.sync import concurrency

        while not cancel.is_set():
            # Polled, because Prefect's own wait cannot be interrupted.
            slot = concurrency(self.name, count, max_retries=0, lease_duration=_LEASE, strict=True)
            try:
                slot.__enter__()
            except ConcurrencySlotAcquisitionError as error:
                if getattr(getattr(error.__cause__, "response", None), "status_code", None) != _LOCKED:
                    raise
                cancel.wait(_POLL)
            else:
                return slot
        return None

    def _pick(self, count: int) -> list[str]:
        with self._lock:
            # With a limit above the number of GPUs the user shares them between stages: then none is assigned.
            gpus = self._free[:count] if len(self._free) >= count else []
            self._free = self._free[len(gpus) :]
            return gpus

    def _ensure_limit(self, needed: int) -> None:
        """Create the limit if it is missing. A limit that the user has set is not changed."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
        from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

        with get_client(sync_client=True) as client:
            try:
                limit = client.read_global_concurrency_limit_by_name(self.name).limit
            except ObjectNotFound:
                limit = max(len(self._free), 1)
                try:
                    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=self.name, limit=limit))
                except ObjectAlreadyExists:
                    limit = client.read_global_concurrency_limit_by_name(self.name).limit
        if needed > limit:
            raise PipelineError(
                what=f"a stage needs {needed} gpus, but Prefect's limit '{self.name}' is {limit}",
                where="dvc.yaml, meta.gpus",
                fix=f"Lower meta.gpus, or run `prefect global-concurrency-limit update {self.name} --limit {needed}`",
            )


def devices() -> list[str]:
    """Return the GPUs that this process may use, by CUDA's names."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device.strip() for device in named.split(",") if device.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], check=False, capture_output=True, text=True)
    return [str(number) for number, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]
