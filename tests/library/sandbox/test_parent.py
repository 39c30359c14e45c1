"""The process that starts isolated processes: its mechanisms, its limits, and how it ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.sandbox import parent
from posttrain.sandbox.parent import (
    ISOLATED,
    Limits,
    Process,
    Sandbox,
    SandboxError,
    SandboxFailed,
    kernel_kills,
    sealed,
)

LIMITS = Limits(seconds=3.0)
SLEEPS = "import time\ntime.sleep(60)"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as found:
        yield found


def stopped(box: Sandbox, code: str, limits: Limits, pipes: dict[int, bytearray] | None = None) -> tuple[str, Process]:
    """Why a program was stopped, and how it ended."""
    with ExitStack() as stack:
        given = stack.enter_context(sealed(""))
        with Path(os.devnull).open("wb") as nothing:
            outputs = {"stdout": nothing.fileno(), "stderr": nothing.fileno()}
            process = stack.enter_context(box.process("program", code, {"stdin": given, **outputs}, limits))
            why = box.watch(process, [], pipes or {}, limits)
    return why, process


def test_wall_time_is_four_times_the_processor_time() -> None:
    assert Limits(seconds=2.5).wall == 10.0


def test_kernel_kills_are_those_of_vmstat() -> None:
    found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None and kernel_kills() == int(found.group(1))


def test_a_process_is_starved_if_the_kernel_has_killed_since() -> None:
    now = kernel_kills()
    assert not Process(1, 0, kills=now).starved
    assert Process(1, 0, kills=now - 1).starved


def test_the_verdict_follows_the_line_ready() -> None:
    assert Process(1, 0, b"ready\n[1]\nrest").verdict == b"[1]\nrest"
    assert Process(1, 0, b"ready").verdict == b""
    with pytest.raises(SandboxFailed, match="a process did not start: no memory"):
        Process(1, 0, b"no memory").verdict  # noqa: B018


@pytest.mark.parametrize(
    ("missing", "mechanisms", "holds"),
    [
        ((), ["namespaces", "landlock", "seccomp"], True),
        (("namespaces",), ["landlock", "seccomp"], True),
        (("landlock",), ["namespaces", "seccomp"], True),
        (("seccomp",), ["namespaces", "landlock"], False),
        (("namespaces", "landlock"), ["seccomp"], False),
    ],
)
def test_what_is_enough(missing: tuple[str, ...], mechanisms: list[str], holds: bool) -> None:
    box = Sandbox.__new__(Sandbox)
    box.faults = {name: "the kernel has none" if name in missing else "" for name in ISOLATED}
    assert box.mechanisms == mechanisms
    assert box.holds is holds


def test_a_sandbox_says_what_it_found_and_ends() -> None:
    box = Sandbox()
    with box as same:
        assert same is box and box.alive
        assert sorted(box.faults) == sorted(ISOLATED) and box.holds
    assert not box.alive and not Path(box._base).exists()
    with Sandbox(isolated=False) as open_box:
        assert open_box.faults == {} and not open_box.holds


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent.sys, "platform", "darwin")
    with pytest.raises(SandboxError) as refused:
        Sandbox()
    assert refused.value.what == (
        "this machine cannot isolate programs (darwin has none of namespaces, landlock, seccomp)"
    )
    assert refused.value.fix.startswith("Use Linux 6.2 or newer")


def test_a_sandbox_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "START", "raise SystemExit('no such module')")
    with pytest.raises(SandboxFailed, match="the sandbox did not start: no such module"):
        Sandbox()


def test_a_killed_sandbox_answers_nothing() -> None:
    with Sandbox() as box:
        box._process.kill()
        box._process.wait()
        with pytest.raises(SandboxFailed, match=r"the sandbox (has ended|does not answer)"):
            stopped(box, "", LIMITS)
        assert not box.alive


def test_a_program_that_ends_is_not_stopped(box: Sandbox) -> None:
    why, process = stopped(box, "raise SystemExit(3)", LIMITS)
    assert why == "" and os.waitstatus_to_exitcode(process.used["status"]) == 3
    assert process.report == b"ready\n" and process.used["seconds"] > 0 and process.used["memory"] > 2**20


def test_the_limits_of_time(box: Sandbox) -> None:
    busy, limits = "while True: pass", replace(LIMITS, seconds=0.1)
    assert stopped(box, SLEEPS, Limits(seconds=0.05))[0] == "longer than 0.2 seconds"
    assert stopped(box, busy, limits)[0] in ("more than 0.1 seconds of processor time", "longer than 0.4 seconds")


def test_the_limit_of_threads(box: Sandbox) -> None:
    code = f"import threading\nfor _ in range(4): threading.Thread(target=lambda: exec({SLEEPS!r})).start()"
    assert stopped(box, code, replace(LIMITS, threads=3))[0] == "more than 3 threads"


def test_the_limit_of_output(box: Sandbox) -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"x" * 11)
        assert (
            stopped(box, SLEEPS, replace(LIMITS, output=10), {read: bytearray()})[0] == "more than 10 bytes of output"
        )
    finally:
        os.close(read)
        os.close(write)


def test_a_process_over_its_limits() -> None:
    own = Process(os.getpid(), 0)
    assert parent._over(own, Limits(seconds=1e6, threads=10**6)) == ""
    assert parent._over(own, Limits(seconds=0.0)) == "more than 0 seconds of processor time"
    assert parent._over(own, Limits(seconds=1e6, threads=0)) == "more than 0 threads"
    assert parent._over(Process(2**22 + 1, 0), Limits(seconds=0.0)) == "", "it has ended"


def test_waiting_for_a_processor_is_counted() -> None:
    schedule = Path("/proc/self/schedstat")
    before = int(schedule.read_text(encoding="ascii").split()[1]) / 1e9
    found = parent._waited(Process(os.getpid(), 0))
    assert before <= found <= int(schedule.read_text(encoding="ascii").split()[1]) / 1e9
    assert parent._waited(Process(2**22 + 1, 0)) == 0.0, "it has ended"


def test_a_sealed_text_cannot_be_changed() -> None:
    with sealed("hello\ud800") as number:
        assert os.read(number, 100) == b"hello\xed\xa0\x80"
        with pytest.raises(PermissionError):
            os.write(number, b"x")
