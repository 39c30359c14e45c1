"""An automation of Prefect's server that posts failures to a webhook, even if a run's host has died."""

from __future__ import annotations

from typing import Any

from posttrain.errors import PipelineError

from .notify import VARIABLE, webhook

NAME = "posttrain: failures"
BLOCK = "posttrain-failures"
EVENTS = ("Failed", "Crashed", "TimedOut", "Late")
FLOWS = ("pipeline", "sweep")
PAYLOAD = (
    '{"text": {{ (flow.name ~ " \'" ~ flow_run.name ~ "\': " ~ flow_run.state.name ~ "\\n" '
    '~ (flow_run.state.message or "")[:3000]) | tojson }}, '
    '"flow": {{ flow.name | tojson }}, "run": {{ flow_run.name | tojson }}, '
    '"state": {{ flow_run.state.name | tojson }}, "message": {{ (flow_run.state.message or "")[:3000] | tojson }}, '
    '"url": {{ flow_run | ui_url | tojson }}}'
)
"""The fields of what a flow itself posts (`notify.message`), as Prefect's template."""


def make() -> str:
    """Create or update the automation on the current server. Return a line about it."""
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture

    url = webhook()
    if not url:
        fix = f"Set {VARIABLE} to the webhook's address. The server stores it as the secret block {BLOCK}"
        raise PipelineError(what="no webhook is set", where=VARIABLE, fix=fix)
    settings: Any = {"method": "POST", "url": url, "headers": {"Content-Type": "application/json"}}
    block_id = Webhook(**settings).save(BLOCK, overwrite=True)
    trigger: Any = EventTrigger(
        expect={f"prefect.flow-run.{event}" for event in EVENTS},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": [*FLOWS, "sweep-*"]},
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
    )
    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(NAME):
            client.delete_automation(old.id)
    action = CallWebhook(block_document_id=block_id, payload=PAYLOAD)
    Automation(name=NAME, description="Made by `posttrain deploy alert`", trigger=trigger, actions=[action]).create()
    return f"The server posts failures, crashes and late runs of {' and '.join(FLOWS)} to {VARIABLE}'s address"
