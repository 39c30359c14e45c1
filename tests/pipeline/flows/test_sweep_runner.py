"""The experiments of a sweep: their times, their failures, and when no more are begun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from flows.artifacts import Outcome
from flows.orphan_guard import OrphanGuard
from flows.sweep_config import Trial
from flows.sweep_runner import Failure, StageTimes, SweepRunner, _failures, alike
from flows.sweep_start import Start

if TYPE_CHECKING:
    from pathlib import Path

SHARED = "error: the stage sft@main runs with the same inputs. Wait until it has ended"


@pytest.fixture
def runner(tmp_path: Path) -> SweepRunner:
    trials = [Trial("lr-1", {}), Trial("lr-2", {})]
    return SweepRunner(Start(tmp_path, "c", "b"), trials, [], 0, OrphanGuard())


def test_a_failure_is_the_stage_and_its_first_error() -> None:
    failure = Failure()
    assert failure.key == ("", "") and failure.is_shared is False
    for line in ("Running stage 'sft@main':", "error: the memory ran out", "ERROR: failed to reproduce"):
        failure(line)
    assert failure.key == ("sft@main", "the memory ran out") and failure.is_shared is False
    failure("Running stage 'sft@main':")
    failure(SHARED)
    assert failure.is_shared is True


def test_errors_that_name_another_prompt_are_alike_and_other_errors_are_not() -> None:
    assert alike("prompt cbe88f01 failed") == alike("prompt 1fa35d22 failed") == "prompt # failed"
    for one, other in (("HTTP 401", "HTTP 500"), ("no 'faced'", "no 'added'"), ("rank 4 of 8", "rank 3 of 8")):
        assert alike(one) == one != alike(other)


def test_an_alert_begins_with_the_cause_and_names_the_logs(runner: SweepRunner) -> None:
    alike = {f"lr-{number}": Outcome("Failed", 1.0, "forty lines", "at 'online': no reward") for number in range(4)}
    runner.outcomes |= {"kl-1": Outcome("Failed", 1.0, "forty lines", "OSError: disk full"), **alike}
    runner.outcomes["lr-9"] = Outcome("Completed", 1.0)
    runner.stopped = "stopped"
    assert _failures(runner).splitlines() == [
        "4 experiments failed at 'online': no reward",
        "  .sweeps/lr-0.log", "  .sweeps/lr-1.log", "  .sweeps/lr-2.log", "  and 1 more",
        "kl-1 failed (OSError: disk full)",
        "  .sweeps/kl-1.log",
        "The others were not started, because two experiments failed alike",
    ]  # fmt: skip


def test_the_times_of_stages_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "lr.json"
    times = StageTimes(file)
    for line in (
        "Running stage 'sft@main':",
        "hello",
        "Running stage 'online@grpo':",
        "it resumes from the checkpoint",
    ):
        times(line)
    times("Updating lock file 'dvc.lock'")
    kept = json.loads(file.read_text())
    assert list(kept) == ["sft@main"] and 0 <= kept["sft@main"] < 60
    again = StageTimes(file)
    again("Running stage 'report':")
    again("Ran experiment(s): lr-1")
    assert list(json.loads(file.read_text())) == ["sft@main", "report"]


def test_a_second_failure_of_the_same_kind_stops_the_sweep(
    runner: SweepRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    failure, other = Failure(), Failure()
    for one, said in ((failure, "error: a"), (other, "error: b")):
        one("Running stage 'sft@main':")
        one(said)
    runner.stop_if_repeated(failure)
    runner.stop_if_repeated(other)
    assert runner.stopped == ""
    runner.stop_if_repeated(failure)
    assert runner.stopped == "stopped, because two experiments failed alike at 'sft@main': a"
    state = runner.run(runner.pending[0])
    assert (state.is_cancelled(), state.name, state.message) == (True, "NotRun", "lr-1: not started")
    assert runner.outcomes == {"lr-1": Outcome("NotRun", message="lr-1: not started")}
    assert capsys.readouterr().out.startswith("[1/2] lr-1  NotRun  0.0 s")


def test_a_cancelled_and_a_broken_experiment(runner: SweepRunner) -> None:
    failed = runner.run(Trial("lr-1", {}))
    assert failed.is_failed() and failed.message.startswith("'lr-1' failed: ")
    runner.cancel.set()
    cancelled = runner.run(Trial("lr-2", {}))
    assert (cancelled.is_cancelled(), cancelled.message) == (True, "lr-2: not started")
    assert [outcome.state for outcome in runner.outcomes.values()] == ["Failed", "Cancelled"]
