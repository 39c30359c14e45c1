"""Records a flow with nothing to do by a few plain calls: importing Prefect would take longer than all the rest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from flows import record
from flows.graph import Stage
from flows.record import Outcome
from posttrain.errors import PipelineError

LOCAL = ("127.0.0.1", "localhost", "::1")
_TIMEOUT = 30.0
_HUNG_UP = 0
_BUSY = (429, 503, _HUNG_UP)
"""What Prefect's server answers while another one writes to its database, or does: it ends connections left waiting."""
_BUSY_WAITS = (0.1, 0.3, 1.0, 3.0)
_ANSWERED = ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_CUSTOM_HEADERS")
"""What Prefect's own client would send along; this one sends nothing, and so leaves such servers to it."""


def possible(url: str) -> bool:
    """Whether the server is a local one that asks nobody who they are."""
    return urlsplit(url).hostname in LOCAL and not any(os.environ.get(name) for name in _ANSWERED)


def recorded(url: str, stages: Sequence[Stage]) -> str:
    """A completed flow run with one Cached task run per stage and the table, as the real flow would leave them."""
    server = Server(url)
    running = {"type": "RUNNING", "name": "Running"}
    flow = server.post("flows/", name="pipeline")["id"]
    run = server.post("flow_runs/", flow_id=flow, state=running)
    for stage in stages:
        server.post(
            "task_runs/",
            name=stage.name,
            task_key=stage.name,
            dynamic_key="0",
            flow_run_id=run["id"],
            state={"type": "COMPLETED", "name": "Cached", "message": "dvc.lock is current"},
        )
    outcomes = {stage.name: Outcome("Cached") for stage in stages}
    server.post(
        "artifacts/",
        key="stages",
        type="table",
        description="Stages with their states and seconds",
        data=json.dumps(record.rows_of(stages, outcomes)),
        flow_run_id=run["id"],
    )
    done = {"type": "COMPLETED", "name": "Completed", "message": f"{len(stages)} stages are up to date"}
    server.post(f"flow_runs/{run['id']}/set_state", state=done, force=True)
    print(record.table(stages, outcomes), flush=True)
    return f"{url.removesuffix('/api')}/runs/flow-run/{run['id']}"


class Server:
    """Prefect's API, spoken to over one connection."""

    def __init__(self, url: str) -> None:
        import http.client

        parts = urlsplit(url)
        self._url, self._path = url, parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname or LOCAL[0], parts.port, timeout=_TIMEOUT)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a call; a busy server is asked again, and anything else but success is an error.

        If it has hung up, nobody knows whether it heard: at worst a record is there twice.
        """
        for wait in (*_BUSY_WAITS, None):
            status, text = self._ask(path, body)
            if status not in _BUSY or wait is None:
                break
            time.sleep(wait)
        if status == _HUNG_UP or status >= 300:
            did = "hung up on" if status == _HUNG_UP else f"answered {status} to"
            what = f"it {did} {path} ({text[:200].decode(errors='replace')})"
            mend = "Is it Prefect's, and of the version in constraints.txt? Else start one: python -m flows.server"
            raise PipelineError(what=what, where=self._url, mend=mend)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        from http.client import HTTPException

        headers = {"Content-Type": "application/json"}
        try:
            self._connection.request("POST", f"{self._path}/{path}", json.dumps(body), headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read()
        except (OSError, HTTPException) as error:
            self._connection.close()  # the next call opens another
            return _HUNG_UP, (str(error) or type(error).__name__).encode()
