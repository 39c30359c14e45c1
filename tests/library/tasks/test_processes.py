"""Worker processes of the user's code: they start, answer, and get no secrets that are not listed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.tasks.processes import worker_environment, worker_pool
from posttrain.tasks.worker import rollout_to
from tests.library.models.tiny import rollout_of

OWN = """
from posttrain.tasks.step import Step
from posttrain.tasks.task import Task

asking = Task(reply=lambda rollout: Step([{"role": "user", "content": rollout.text + "!"}], done=True))
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_asking.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_process_takes_a_step() -> None:
    setup = {"task": "own_asking:asking", "label": "task 'own_asking:asking'"}
    pool = worker_pool("posttrain.tasks.worker", setup, 1)
    answer = pool.ask(rollout_to(rollout_of("so")), 60.0)
    assert answer["step"]["messages"] == [{"role": "user", "content": "so!"}] and answer["step"]["done"] is True


def test_an_error_at_the_start_is_that_of_this_process() -> None:
    setup = {"task": "own_asking:missing", "label": "task 'own_asking:missing'"}
    with pytest.raises(ParamsError, match="missing"):
        worker_pool("posttrain.tasks.worker", setup, 1).ask(rollout_to(rollout_of("so")), 60.0)


def test_secrets_are_passed_only_if_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_SERVICE_TOKEN", "OTHER_TOKEN"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("PLAIN", "value")
    found = worker_environment(["MY_SERVICE_TOKEN"])
    assert "MY_SERVICE_TOKEN" in found and "PLAIN" in found and "OTHER_TOKEN" not in found
