"""One stage of a flow: what DVC's output, an error and a cancellation make of it."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from prefect.states import Cancelled, Completed, Failed, Pending

from flows import graph
from flows.artifacts import Outcome
from flows.graph import Needs, Stage
from flows.orphan_guard import OrphanGuard
from flows.run import DvcOutputParser, RepeatedFailureFilter, StageRunner, _as_task, _outcome, _why_failed
from posttrain.measure.stage_log import log_path
from posttrain.pipeline.workspace import failure_path

if TYPE_CHECKING:
    from pathlib import Path

    from prefect.client.schemas.objects import State

STALE, CURRENT = Stage("sft@main", (), Needs(retries=2), ("changed",)), Stage("report", (), Needs(), ())


def parsed(*lines: str) -> tuple[DvcOutputParser, list[str]]:
    written: list[str] = []
    parser = DvcOutputParser("sft@main", written.append)
    for line in lines:
        parser(line)
    return parser, written


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("Running stage 'sft@main':", "Completed"),
        ("Stage 'sft@main' is cached - skipping run, checking out outputs", "RunCached"),
        ("Stage 'sft@main' didn't change, skipping", "Cached"),
        ("'sft@main' didn't change, skipping", "Cached"),
        ("Stage 'report' didn't change, skipping", "Completed"),
    ],
)
def test_the_state_is_read_from_dvcs_first_line(line: str, state: str) -> None:
    assert parsed(line, "Stage 'sft@main' didn't change" if state == "RunCached" else "")[0].state == state


def test_the_exit_code_and_a_busy_folder_are_noticed() -> None:
    parser, _ = parsed("Running stage 'sft@main':", "ERROR: failed to reproduce 'sft@main': it exited with 7")
    assert parser.code == "7" and not parser.busy
    busy, written = parsed("ERROR: '/a' is busy, it is being blocked by:")
    busy("If there are no processes, you can manually remove '/a/rwlock'")
    said = "Another DVC command is using this stage's files. Waiting until it has ended"
    assert busy.busy and written == [said], "DVC's advice to remove its locks can do damage"
    busy.start_waiting()
    busy("ERROR: again")
    assert not busy.busy and written == [said]
    assert parsed("Use `dvc push` to send your updates")[1] == []


def test_prefects_repeated_failures_are_dropped() -> None:
    def kept(text: str) -> tuple[bool, str]:
        record = logging.LogRecord("prefect", logging.ERROR, "", 0, text, (), None)
        return RepeatedFailureFilter().filter(record), record.getMessage()

    assert kept("Task run failed with state Failed('a') - Task run failed")[0] is False
    assert kept("Task run failed with state Failed('a') - Retry 1/2 will start") == (True, "Retry 1/2 will start")
    assert kept("Finished in state NotReady('a')")[0] is False
    assert kept("Finished in state Failed('a long story')") == (True, "Finished in state Failed")
    assert kept("Created task run") == (True, "Created task run")


def test_a_failure_begins_with_its_reason(tmp_path: Path) -> None:
    tail = ["Traceback ...", "ValueError: pears", "ERROR: failed to reproduce 'sft@main'"]
    said = "sft@main failed: ValueError: pears (exit code 1)"
    shown = "\n".join([said, *(f"  {line}" for line in tail)])
    assert _why_failed(tmp_path, "sft@main", 0.0, tail, "exit code 1") == shown
    assert _why_failed(tmp_path, "sft@main", 0.0, [], "timed out") == "sft@main failed: timed out"
    file = tmp_path / failure_path("sft@main")
    file.parent.mkdir(parents=True)
    file.write_text("the memory ran out\nat step 3\n")
    log = f"  exit code 1; log: {tmp_path / log_path('sft@main')}"
    known = f"sft@main failed: the memory ran out\n  at step 3\n{log}"
    assert _why_failed(tmp_path, "sft@main", 0.0, tail, "exit code 1") == known
    assert _why_failed(tmp_path, "sft@main", time.time() + 60, tail, "exit code 1") == shown, "it is of an earlier run"


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Pending(), None),
        (Failed(message="a"), Outcome("Failed", 0.0, "a")),
        (Cancelled(message="b"), Outcome("Cancelled", 0.0, "b")),
        (Completed(name="RunCached", data=SimpleNamespace(result=2.5)), Outcome("RunCached", 2.5, "")),
        (Completed(data="text"), Outcome("Completed", 0.0, "")),
    ],
)
def test_the_outcome_of_a_stage_in_another_process(state: State, outcome: Outcome | None) -> None:
    future: Future = Future()
    future.state = state
    assert _outcome(future) == outcome


def test_a_stage_is_a_task_with_its_name_and_retries() -> None:
    task = _as_task(STALE, lambda name: Completed(message=name))
    assert (task.name, task.task_run_name, task.retries, task.persist_result) == ("sft@main", "sft@main", 2, False)


def test_a_current_stage_is_not_run_and_a_cancelled_one_not_started(tmp_path: Path) -> None:
    runner = StageRunner(tmp_path, [STALE, CURRENT], "stale", OrphanGuard(), "local")
    assert runner.to_run == graph.select([STALE, CURRENT], "stale") == {"sft@main"}
    cached = runner.run("report")
    assert (cached.is_completed(), cached.name, cached.message) == (True, "Cached", "dvc.lock is current")
    runner.cancel.set()
    cancelled = runner.run("sft@main")
    assert (cancelled.is_cancelled(), cancelled.message) == (True, "sft@main: not started")
    assert [outcome.state for outcome in runner.outcomes.values()] == ["Cached", "Cancelled"]


def test_what_fails_around_a_stage_is_a_failure_of_the_stage(tmp_path: Path) -> None:
    runner = StageRunner(
        tmp_path / "missing", [Stage("report", (), Needs(), ("changed",))], "all", OrphanGuard(), "local"
    )
    failed = runner.run("report")
    assert failed.is_failed() and failed.message.startswith("report: FileNotFoundError")
    assert runner.outcomes["report"].state == "Failed"
