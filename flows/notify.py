"""Posts a failed flow to the webhook in POSTTRAIN_WEBHOOK, as JSON in Slack's format."""

from __future__ import annotations

import html
import http.client
import json
import logging
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from posttrain.errors import ParamsError
from posttrain.measure.terminal import ACTIVE

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

VARIABLE = "POSTTRAIN_WEBHOOK"
# An address like Slack's is a secret: it stays in the environment, and out of Prefect's parameters and logs.
_DELAYS = (0.0, 2.0, 8.0)
_TIMEOUT = 10.0
_MAX_CHARACTERS = 3000
_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)")
"""Terminal sequences: colours, titles and links."""

log = logging.getLogger("prefect.posttrain.notify")


def webhook() -> str | None:
    """Return the address in POSTTRAIN_WEBHOOK; None if it is not set. Reject anything that is not an address."""
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        what = "its value is not an address"  # the value may be a secret
        raise ParamsError(what=what, where=VARIABLE, fix="Set it to one like https://hooks.slack.com/services/...")
    return url


def on_failure(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Post a failed or crashed run. It is a Prefect hook."""
    url = os.environ.get(VARIABLE)
    if url:
        send(url, message(flow.name, flow_run.name, str(flow_run.id), state.name or "Failed", state.message or ""))


def message(flow: str, run: str, run_id: str, state: str, text: str) -> dict[str, str]:
    """Return the JSON to post. A chat shows `text`, which contains the stage's output without markup."""
    pages = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    plain = ACTIVE.sub("", _CODES.sub("", text))
    shown = plain if len(plain) <= _MAX_CHARACTERS else f"{plain[:_MAX_CHARACTERS].rsplit(maxsplit=1)[0]} ..."
    block = html.escape(shown, quote=False).replace("`" * 3, "'" * 3)
    return {
        "text": f"{html.escape(flow, quote=False)} '{run}' on {socket.gethostname()}: {state}\n```\n{block}\n```",
        "flow": flow,
        "run": run,
        "state": state,
        "message": shown,
        "url": f"{pages}/runs/flow-run/{run_id}",
    }


def send(url: str, body: dict[str, str]) -> bool:
    """Post the body in up to three attempts. If the webhook does not answer, only log it."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", "User-Agent": "posttrain"}
    reason = ""
    for delay in _DELAYS:
        time.sleep(delay)
        try:
            # The text of an error may contain the address, which is a secret: only its type is logged.
            request = urllib.request.Request(url, data, headers, method="POST")
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return True
        except urllib.error.HTTPError as error:
            reason = f"it answered {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = type(error).__name__
    log.warning("the failure could not be posted to %s: %s", VARIABLE, reason)
    return False
