"""A flow with nothing to do: recorded like any other, and cheap."""

from __future__ import annotations

import os

import pytest

from flows import idle
from posttrain.errors import PipelineError
from tests.flows.project import Project
from tests.flows.webhook import Webhook


def test_it_is_recorded_like_any_other(project: Project) -> None:
    assert project.run().code == 0
    ended = project.run()
    assert set(ended.states.values()) == {"Cached"}
    run_id = project.run_id(ended.err)
    (run,) = project.api("flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})
    assert (run["state_type"], run["state"]["message"]) == ("COMPLETED", "5 stages are up to date")
    assert run["start_time"] and run["end_time"] and run["total_run_time"] >= 0
    tasks = project.task_runs(ended)
    assert {name: (task["state_type"], task["state_name"]) for name, task in tasks.items()} == dict.fromkeys(
        ended.states, ("COMPLETED", "Cached")
    )
    (flow,) = project.api("flows/filter", flows={"id": {"any_": [run["flow_id"]]}})
    assert flow["name"] == "pipeline"
    artifacts = project.api("artifacts/filter", flow_runs={"id": {"any_": [run_id]}})
    assert [artifact["key"] for artifact in artifacts] == ["stages"]


def test_a_busy_server_is_asked_again(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_BUSY_WAITS", (0.0, 0.01))
    server = idle.Server(webhook.url)
    webhook.answers[:] = [503, 429]
    assert server.post("flows/", name="pipeline") == {}
    assert [body["name"] for body in webhook.posted] == ["pipeline"] * 3
    webhook.answers[:] = [503] * 3
    with pytest.raises(PipelineError, match="it answered 503"):
        server.post("flows/", name="pipeline")
    webhook.answers[:] = [0, 503]
    assert server.post("flows/", name="pipeline") == {}
    webhook.answers[:] = [0] * 3
    with pytest.raises(PipelineError, match="it hung up on flows/"):
        server.post("flows/", name="pipeline")
    webhook.answers[:] = [500]
    with pytest.raises(PipelineError, match="it answered 500"):
        server.post("flows/", name="pipeline")


def test_only_a_local_server_without_a_door_is_told_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_CLIENT_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    assert idle.possible("http://127.0.0.1:4200/api")
    assert not idle.possible("https://api.prefect.cloud/api/accounts/a/workspaces/b")
    monkeypatch.setitem(os.environ, "PREFECT_API_AUTH_STRING", "admin:pass")
    assert not idle.possible("http://127.0.0.1:4200/api")
