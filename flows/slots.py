"""GPU slots: a Prefect global concurrency limit per host, asked only for stages whose `meta` wants gpus."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from flows.graph import Stage
from posttrain.errors import PipelineError

_ASK_AGAIN = 1.0
_ALL_TAKEN = 423
_LEASE = 60.0  # after a flow was killed with -9, its slots are free again after so many seconds


class Slots:
    """Hands out the GPUs of this host to the stages of one flow, in agreement with other flows on the same server."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.name = f"gpu-{socket.gethostname()}"
        self._free = devices()
        self._lock = threading.Lock()
        wanted = max((stage.needs.gpus for stage in stages), default=0)
        if wanted:
            self._ensure(wanted)

    @contextmanager
    def take(self, stage: Stage, cancel: threading.Event) -> Iterator[dict[str, str]]:
        """Hold the stage's slots, waited for until `cancel` is set; gives the environment that shows it its GPUs."""
        if not stage.needs.gpus:
            yield {}
            return
        slot = self._wait(stage.needs.gpus, cancel)
        if slot is None:
            yield {}
            return
        mine = self._pick(stage.needs.gpus)
        try:
            yield {"CUDA_VISIBLE_DEVICES": ",".join(mine)} if mine else {}
        finally:
            with self._lock:
                self._free = sorted([*self._free, *mine])
            slot.__exit__(None, None, None)

    def _wait(self, count: int, cancel: threading.Event) -> AbstractContextManager[None] | None:
        """The entered slots, or nothing once `cancel` is set."""
        from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
        from prefect.concurrency.sync import concurrency

        while not cancel.is_set():
            # Asked anew instead of waited for in Prefect, because its wait cannot be interrupted.
            slot = concurrency(self.name, count, max_retries=0, lease_duration=_LEASE, strict=True)
            try:
                slot.__enter__()
            except ConcurrencySlotAcquisitionError as error:
                if getattr(getattr(error.__cause__, "response", None), "status_code", None) != _ALL_TAKEN:
                    raise
                cancel.wait(_ASK_AGAIN)
            else:
                return slot
        return None

    def _pick(self, count: int) -> list[str]:
        with self._lock:
            # A limit larger than the machine is the user's wish to share GPUs: then nobody is told which to use.
            mine = self._free[:count] if len(self._free) >= count else []
            self._free = self._free[len(mine) :]
            return mine

    def _ensure(self, wanted: int) -> None:
        """Make the limit where there is none; one that the user has set stays as it is."""
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
        if wanted > limit:
            raise PipelineError(
                what=f"a stage asks for {wanted} gpus and this host has {limit}",
                where=f"dvc.yaml (meta.gpus) against Prefect's limit '{self.name}'",
                fix=f"Ask for less, or run `prefect global-concurrency-limit update {self.name} --limit {wanted}`",
            )


def devices() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [one.strip() for one in named.split(",") if one.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], check=False, capture_output=True, text=True)
    return [str(number) for number, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]
