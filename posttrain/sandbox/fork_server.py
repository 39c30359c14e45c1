"""The process that all programs are forked from.

It does not run programs itself, and contains nothing that programs must not see.

It starts once and enters namespaces. For each program it forks a process that is restricted by limits, Landlock and
seccomp before it sees a byte of the program. It imports only the standard library and this package.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from posttrain.sandbox import child, landlock, linux, namespaces, seccomp

READY = b"ready\n"
"""The report of a process that is isolated and about to run the program."""


class Isolation:
    """The isolation of this process's programs."""

    def __init__(self, base: Path, wanted: bool) -> None:  # noqa: FBT001
        self.faults: dict[str, str] = {}
        self.rules: int | None = None
        self.filter = b""
        self.namespaces = False
        if wanted:
            self._find(base)

    def _find(self, base: Path) -> None:
        """Enter namespaces and make the rules, as far as the kernel supports them."""
        self.faults["namespaces"] = _attempt(lambda: namespaces.enter(base))
        self.faults["seccomp"] = _attempt(lambda: _hold(None, seccomp.filter_code()))
        version = landlock.landlock_version()
        known = f"version {version} is older than {landlock.FIRST}" if version else "the kernel has none"
        self.faults["landlock"] = "" if version >= landlock.FIRST else known
        self.namespaces = not self.faults["namespaces"]
        if not self.faults["seccomp"]:
            self.filter = seccomp.filter_code()
        if self.namespaces:
            namespaces.enter(base)
        if not self.faults["landlock"]:
            written = [str(Path(namespaces.SCRATCH).parent)] if self.namespaces else []
            self.rules = landlock.make_rules(linux.readable(), linux.python_folders(), written)
            os.set_inheritable(self.rules, False)


def _hold(rules: int | None, code: bytes) -> None:
    """Restrict this process with Landlock and seccomp."""
    linux.drop_privileges()
    if rules is not None:
        landlock.restrict(rules)
        os.close(rules)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    seccomp.install(code, os.getpid())


def _attempt(step: Any) -> str:
    """Return the reason why a step fails, tried in a temporary process; empty if it works."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
            os.write(write, f"{error}"[:500].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        why = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return why or (f"it ends the process (status {status})" if status else "")


def _child(request: dict[str, Any], files: dict[str, int], isolation: Isolation) -> None:
    """Run one program in this process and exit."""
    os.setsid()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(files.pop(name, min(number, 1)), number)  # both are /dev/null
    with os.fdopen(files.pop("source"), encoding="utf-8") as text:
        source = text.read()
    open_files = sorted([*files.values(), *([isolation.rules] if isolation.rules is not None else [])])
    for low, high in zip([2, *open_files], [*open_files, 256], strict=True):
        os.closerange(low + 1, high)
    connection = socket.socket(fileno=files["connection"]) if "connection" in files else None
    _limit(request)
    if isolation.namespaces:
        namespaces.mount_scratch(request["scratch"], request["files"])
    if isolation.filter:
        _hold(isolation.rules, isolation.filter)
    else:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.write(files["report"], READY)
    if request["kind"] != "tests":
        os.close(files["report"])  # a program has nothing to report
    status, report = child.run(request["kind"], source, connection)
    if report:
        os.write(files["report"], report.encode())
    os._exit(status)


def _limit(request: dict[str, Any]) -> None:
    seconds = math.ceil(request["seconds"]) + 1
    limits = {
        resource.RLIMIT_AS: request["memory"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: request["scratch"],
        resource.RLIMIT_NOFILE: request["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


def _fork(request: dict[str, Any], files: list[int], isolation: Isolation) -> dict[str, Any]:
    child = os.fork()
    if child:
        return {"pid": child}
    named = dict(zip(request["fds"], files, strict=True))
    report = named["report"]
    try:
        _child(request, named, isolation)
    except BaseException as error:  # noqa: BLE001  nothing may run on into the parent's loop
        os.write(report, json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(1)


def _end(process: int, group: bool) -> dict[str, Any]:  # noqa: FBT001
    """Kill a process, or its group if it could fork, and return its usage."""
    try:
        (os.killpg if group else os.kill)(process, signal.SIGKILL)
    except ProcessLookupError:  # it has no group yet, or ended
        os.kill(process, signal.SIGKILL)
    _, status, used = os.wait4(process, 0)
    return {"status": status, "seconds": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}


def main() -> None:
    """Answer the parent until it hangs up. The kernel then ends everything that remains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory, the kernel ends programs first
    isolation = Isolation(Path.cwd(), sys.argv[2] == "isolated")
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # where nothing hides processes, their memory still cannot be read
    sys.path[:] = [folder for folder in sys.path if Path(folder).is_dir()]
    gc.freeze()
    control.send(json.dumps(isolation.faults).encode())
    while True:
        message, files, _, _ = socket.recv_fds(control, 2**16, 8)
        if not message:
            return
        request = json.loads(message)
        if "end" in request:
            answer = _end(request["end"], not isolation.filter)
        else:
            try:
                answer = _fork(request, files, isolation)
            except OSError as error:
                answer = {"failed": f"it cannot start a process: {error}"}
        for file in files:
            os.close(file)
        control.send(json.dumps(answer).encode())
