"""Judge a program with its tests. The expected results are never in the program's process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.sandbox.parent import Limits, Process, Sandbox, SandboxFailed, sealed

SHOWN = 300


@dataclass(frozen=True)
class Verdict:
    """The number of tests that a program passed, and the reason of the first failure."""

    passed: int
    count: int
    reason: str = ""
    fault: str = ""
    """Why the tests cannot judge any program."""
    seconds: float = 0.0
    """CPU seconds of the program."""


@dataclass(frozen=True)
class Case:
    """An input of a program, and the expected output."""

    stdin: str
    stdout: str


def judged(box: Sandbox, request: Mapping[str, Any], limits: Limits) -> Verdict:
    """Run the tests in a request, which holds the arguments of run_tests or run_cases, and return their verdict."""
    if "cases" not in request:
        return run_tests(box, limits=limits, **request)
    cases = [Case(*case) for case in request["cases"]]
    return run_cases(box, request["code"], cases, limits, request["share"])


def run_cases(box: Sandbox, code: str, cases: Sequence[Case], limits: Limits, share: bool = False) -> Verdict:  # noqa: FBT001, FBT002
    """Run a program on each input in a separate process. Without `share`, stop at the first failure."""
    passed, reason, seconds = 0, "", 0.0
    for number, case in enumerate(cases, start=1):
        printed, why, used = run_program(box, code, case.stdin, limits)
        seconds += used
        if not why and _lines(printed) != _lines(case.stdout):
            why = f"it printed {printed[:SHOWN]!r}"
        passed += not why
        reason = reason or (f"case {number}: {why}" if why else "")
        if why and not share:
            break
    return Verdict(passed, len(cases), reason, seconds=seconds)


def run_program(box: Sandbox, code: str, stdin: str, limits: Limits) -> tuple[str, str, float]:
    """Return a program's output, the reason why it failed (empty if it did not), and its CPU time."""
    with contextlib.ExitStack() as stack:
        out, out_end = _pipe(stack)
        error, error_end = _pipe(stack)
        given = stack.enter_context(sealed(stdin))
        files = {"stdin": given, "stdout": out_end, "stderr": error_end}
        pipes = {out: bytearray(), error: bytearray()}
        with box.process("program", code, files, limits) as process:
            why = box.watch(process, [], pipes, limits)
    _check_started([process], why)
    if not why and process.used["status"]:
        said = pipes[error].decode(errors="replace").strip().splitlines()
        why = said[-1][:SHOWN] if said and os.WIFEXITED(process.used["status"]) else _ended(process.used["status"])
    return pipes[out].decode(errors="replace"), why, process.used["seconds"]


def run_tests(
    box: Sandbox,
    code: str,
    tests: str,
    limits: Limits,
    setup: str = "",
    entry_point: str | None = None,
    share: bool = False,  # noqa: FBT001, FBT002
) -> Verdict:
    """Run tests in a separate process, which calls the program's functions in another process."""
    shared = {"setup": setup, "entry_point": entry_point}
    program = json.dumps({**shared, "code": code})
    judge = json.dumps({**shared, "tests": tests, "share": share})
    with contextlib.ExitStack() as stack:
        ends = socket.socketpair()
        with ends[0], ends[1]:
            program_process = stack.enter_context(
                box.process("functions", program, {"connection": ends[0].fileno()}, limits)
            )
            tests_process = stack.enter_context(box.process("tests", judge, {"connection": ends[1].fileno()}, limits))
        why = box.watch(tests_process, [program_process], {}, limits)
    seconds = program_process.used["seconds"]
    _check_started([program_process, tests_process], why)
    if why:
        return Verdict(0, 1, why, seconds=seconds)
    try:
        reply = json.loads(tests_process.verdict)
    except ValueError as error:
        raise SandboxFailed(f"the tests' process gave no verdict ({_ended(tests_process.used['status'])})") from error
    if "fault" not in reply:
        raise SandboxFailed(f"the tests' process failed: {reply.get('failed')}")
    if reply["failed"]:
        _check_memory([program_process, tests_process])
    passed = reply["passed"] if share or not reply["failed"] else 0
    return Verdict(passed, reply["count"], reply["reason"], reply["fault"], seconds)


def _check_started(processes: Sequence[Process], why: str) -> None:
    """Raise SandboxFailed if a process never ran, or the machine has no memory left."""
    for process in processes:
        process.verdict  # noqa: B018
    if why or any(process.used["status"] for process in processes):
        _check_memory(processes)


def _check_memory(processes: Sequence[Process]) -> None:
    if any(process.starved for process in processes):
        raise SandboxFailed("the machine ran out of memory, and the kernel killed a process")


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"it ended with status {os.waitstatus_to_exitcode(status)}"


def _lines(text: str) -> list[str]:
    """Return the lines of an output, without trailing spaces and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
