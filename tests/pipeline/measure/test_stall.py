"""A stage that does not move says so once, with its stacks and those of its workers, and continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STALLED = """
import os, subprocess, sys, time
from posttrain.isolation.child import Child
from posttrain.measure import stall
from posttrain.measure.phases import CLOCK, phase
from posttrain.measure.stall import print_stacks_on_signal, watch_stalls

def wait_for_an_answer():
    sys.stdin.readline()

other = subprocess.Popen(["sleep", "600"])
child = Child([sys.executable, "-m", "posttrain.rewards.worker"], os.environ)
while not stall._handles(child.pid):
    time.sleep(0.05)
CLOCK.begin()
print_stacks_on_signal()
watch_stalls("online@grpo")
for _ in range(2):
    with phase("reward"):
        wait_for_an_answer()
assert other.poll() is None, "a process of another kind is left alone"
child.kill(), other.kill()
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "POSTTRAIN_STALL_MINUTES": "0.02"}
    with subprocess.Popen(
        [sys.executable, "-c", STALLED], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def until(stage: subprocess.Popen[str], words: str) -> list[str]:
    """The lines up to one with the words; the process is killed with its test if it never comes."""
    assert stage.stderr is not None
    lines: list[str] = []
    for line in stage.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"{words!r} is not in {lines}")


def test_a_stall_is_reported_once_with_the_stacks_of_all_processes(stage: subprocess.Popen[str]) -> None:
    assert stage.stdin is not None
    reported = until(stage, "online@grpo has not moved for")[-1]
    assert "phase reward (waits for scores of rewards)" in reported and "POSTTRAIN_STALL_MINUTES" in reported
    lines = until(stage, "posttrain/tasks/worker.py")
    text = "".join(lines)
    assert "in wait_for_an_answer" in text and "posttrain.rewards.worker" in text and "sleep 600" in text
    stage.stdin.write("\n")
    stage.stdin.flush()
    after = until(stage, "online@grpo moves again after")
    again = until(stage, "online@grpo has not moved for")
    assert not any("has not moved" in line for line in (*after, *again[:-1])), "once for each time that it stalls"
    stage.stdin.write("\n")
    stage.stdin.close()
    assert stage.wait() == 0


WAIT = """
import os, signal, threading, time
import polars
from posttrain.pipeline.processes.stage import hear_ctrl_c

def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
hear_ctrl_c()
threading.Thread(target=interrupt).start()
threading.Event().wait()
"""


def test_ctrl_c_ends_a_wait_for_another_thread() -> None:
    done = subprocess.run([sys.executable, "-c", WAIT], timeout=60, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr
