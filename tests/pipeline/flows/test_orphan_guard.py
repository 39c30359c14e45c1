"""Process groups are ended signal by signal, and none outlives the guard."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from flows.orphan_guard import GroupTermination, OrphanGuard, alive, send

HOUR = 3600.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def test_signals_reach_a_group_as_long_as_it_has_members(sleeper: subprocess.Popen[bytes]) -> None:
    assert alive(sleeper.pid) is True
    assert send(sleeper.pid, signal.SIGTERM) is True
    assert sleeper.wait() == -signal.SIGTERM
    assert send(sleeper.pid, signal.SIGTERM) is False
    assert alive(sleeper.pid) is False


def test_a_group_is_ended_step_by_step(sleeper: subprocess.Popen[bytes]) -> None:
    patient = GroupTermination(sleeper.pid, ((signal.SIGCONT, HOUR), (signal.SIGKILL, HOUR)))
    assert patient.step() is True, "the first signal is sent"
    assert patient.step() is True, "the next one is not due, and the group lives"
    assert GroupTermination(sleeper.pid, ()).step() is False, "no signal is left"
    assert GroupTermination(sleeper.pid, ((signal.SIGTERM, HOUR),)).step() is True
    assert sleeper.wait() == -signal.SIGTERM
    assert patient.step() is False, "the group has ended"


def test_the_guard_ends_the_groups_that_are_left(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "20"], start_new_session=True) as other:
        threading.Thread(target=sleeper.wait).start()  # else what is left of it would still be a member of its group
        with OrphanGuard() as guard:
            for process in (sleeper, other):
                guard.add(process.pid)
            guard.drop(other.pid)
        assert sleeper.wait() == -signal.SIGINT
        assert other.poll() is None
        other.kill()
