"""Processes of a run: how they are started, and how they end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.processes import children as module
from posttrain.pipeline.processes.children import FOLDER, MEMORY, PARENT, RESUME, Children, Death, remove

OWN, LOST, KILLED, CRASHED = 1, 2, 0, 1


def died(script: str, *, size: int = 2) -> Death:
    children = Children(["sh", "-c", script], size, "file:///none", {})
    assert children.ended(30) is True
    return children.deaths()[0]


@pytest.mark.parametrize(
    ("script", "death"),
    [
        ("echo one; echo 'error: no room'; exit 3", Death(OWN, "process 2 of 2 ended with exit code 3: no room", "")),
        ("echo '[rank1]: a'; echo b; exit 1", Death(OWN, "process 2 of 2 ended with exit code 1: b", "a\nb")),
        ("exit 2", Death(OWN, "process 2 of 2 ended with exit code 2: it printed nothing", "")),
        (
            "echo 'gloo: connection closed'; exit 1",
            Death(LOST, "process 2 of 2 ended with exit code 1: gloo: connection closed", "gloo: connection closed"),
        ),
        ("kill -9 $$", Death(KILLED, "process 2 of 2 was ended by signal 9 (SIGKILL)", "")),
        ("echo bad; kill -ABRT $$", Death(CRASHED, "process 2 of 2 was ended by signal 6 (SIGABRT)", "bad")),
    ],
)
def test_the_death_of_a_process(script: str, death: Death) -> None:
    assert died(script) == death


def test_a_process_that_has_done_its_work_is_not_dead() -> None:
    children = Children(["true"], 3, "file:///none", {})
    assert children.ended(30) is True and children.deaths() == []


def test_processes_are_told_their_place(tmp_path: Path) -> None:
    shown = f"echo $RANK $WORLD_SIZE $LOCAL_RANK $POSTTRAIN_RENDEZVOUS $EXTRA >> {tmp_path}/seen"
    children = Children(["sh", "-c", shown], 3, "file:///a", {"EXTRA": "b"})
    assert children.ended(30)
    assert sorted((tmp_path / "seen").read_text().splitlines()) == ["1 3 1 file:///a b", "2 3 2 file:///a b"]


def test_processes_that_run_on_are_killed() -> None:
    children = Children(["sleep", "300"], 2, "file:///none", {})
    assert children.ended(0.0) is False and children.deaths() == []
    children.kill()
    assert [death.order for death in children.deaths()] == [KILLED]


def test_a_death_is_an_error_of_the_run() -> None:
    error = Death(1, "process 2 of 2 ended with exit code 3: a", "").error("online@grpo")
    assert isinstance(error, PipelineError)
    assert (error.what, error.where, error.fix) == ("process 2 of 2 ended with exit code 3: a", "online@grpo", RESUME)
    assert Death(0, "ended by signal 9 (SIGKILL)", "").error("a").fix == f"{MEMORY}. {RESUME}"


def test_a_process_has_a_parent_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT, str(os.getppid()))
    assert module._has_parent() is True
    monkeypatch.setenv(PARENT, "1234567")
    assert module._has_parent() is False


def test_only_folders_of_runs_are_removed(tmp_path: Path) -> None:
    mine, other = tmp_path / f"{FOLDER}x", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
        remove(folder)
    assert not mine.exists() and other.exists()
