"""A vLLM server on another host: ssh starts it, sends weights, forwards requests to its socket, and ends it.

There are no ports and no shared files. ssh forwards a Unix socket in this server's folder to one in a remote folder of
mode 0700. Weights and heartbeats go through ssh's input (far_end.py reads them).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from posttrain.errors import EngineError
from posttrain.isolation.environment import PROBE_S, probe, version_fault
from posttrain.plugins.vllm_ssh import far_end
from posttrain.sampling.vllm import server
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import GRACE_S, PACKAGES, PYTHON, EngineProcess, given_command, kill_group
from posttrain.sampling.vllm.remote import Remote
from posttrain.sampling.vllm.server import VERSIONS

SSH: Final = "POSTTRAIN_SSH"
"""The environment variable with the ssh command and its options, e.g. `ssh -J bastion -p 2222`. These take
precedence."""
OPTIONS: Final = {
    "BatchMode": "yes", "ConnectTimeout": "30", "ControlPath": "none", "ExitOnForwardFailure": "yes",
    "LogLevel": "ERROR", "ServerAliveInterval": "15", "StreamLocalBindUnlink": "yes",
}  # fmt: skip
SILENT_S: Final = 60.0
"""Seconds without a heartbeat after which a remote server ends."""
BEATS: Final = 6
"""The number of heartbeats in this time."""
CHUNK: Final = 1 << 20
SERVER: Final = "server.py"
BOOT: Final = "import os; exec(bytes().join(os.read(0, 1) for _ in range({size})))"
"""The remote Python program: it reads the text at the start of its input, exactly to the last byte, and runs it."""
KEEPER: Final = (
    "import os, shutil, subprocess, sys; "
    "status = subprocess.call(sys.argv[3:]); "
    "os.getppid() == int(sys.argv[1]) or shutil.rmtree(sys.argv[2], ignore_errors=True); "
    "sys.exit(status % 256)"
)
"""The parent of ssh on this host. If this process is gone when ssh ends, it removes the local folder."""


def ssh_command() -> list[str]:
    """Return the ssh command with its options. Raise if it is missing."""
    command = shlex.split(os.environ.get(SSH, "")) or ["ssh"]
    if shutil.which(command[0]) is None:
        fix = f"Install OpenSSH's client, set another command ({SSH}='/path/to/ssh -p 2222'), or unset {HOSTS}"
        raise EngineError(
            what=f"the command {command[0]} does not exist, and the hosts of {HOSTS} need it", where=SSH, fix=fix
        )
    return [*command, "-aTx", *(word for pair in OPTIONS.items() for word in ("-o", "=".join(pair)))]


def far_python(host: str) -> str:
    """Return the remote Python with vLLM, at the same path as here. Reject a host without it."""
    [python] = given_command()
    python = str(Path(python).absolute()) if "/" in python else python
    command = [*ssh_command(), host, shlex.join(probe(python, PACKAGES))]
    try:
        asked = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S
        )
        status, said = asked.returncode, " ".join(asked.stderr.splitlines()[-3:])
    except subprocess.TimeoutExpired:
        status, said = 255, f"no answer within {PROBE_S:g} s"
    fix = f"This must work without a prompt: {shlex.join([*ssh_command(), host, 'true'])}. Options of ssh: {SSH}"
    wrong = f"ssh does not reach the host: {said}"
    if status != 255:
        fix = f"Create vLLM's environment there at the same path, or set {PYTHON}=/path to a Python on all hosts"
        wrong = f"there is no Python at {python}: {said}" if status else ""
        installed = asked.stdout.removesuffix("\n").rpartition("\n")[2]  # a shell may greet first
        wrong = wrong or version_fault(python, installed, "vLLM", VERSIONS) or ""
    if wrong:
        raise EngineError(what=wrong, where=f"{HOSTS}, host {host}", fix=f"{fix}. Servers on this host: unset {HOSTS}")
    return python


class RemoteProcess(EngineProcess):
    """A server on another host. The local process is ssh, which ends when the server has ended."""

    def __init__(
        self, host: str, options: Sequence[str], environment: Mapping[str, str], *,
        first: EngineProcess | None = None, number: int = 0, silent_s: float = SILENT_S,
    ) -> None:  # fmt: skip
        """`host`: its ssh name. `silent_s`: seconds without a heartbeat after which the server ends."""
        self._host, self._silent_s = host, silent_s
        self._writing = threading.Lock()
        self._sent: set[str] = set()
        super().__init__(options, environment, first=first, number=number)
        self._where += f" on {host}"

    def load(self, weights: Path) -> dict[str, Any]:
        """Send the weights in a folder and let the server load them."""
        self._send_folder(weights)
        return self.ask("POST", {"folder": f"{self._place()}/{weights.name}"})

    def forget(self, weights: Path) -> None:
        """Remove weights on the other host."""
        with contextlib.suppress(BrokenPipeError):
            self._send({"remove": weights.name})

    def end(self) -> None:
        """End the server by closing the connection. Kill ssh if it does not report the server's end in time."""
        self._hang_up()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        super().end()

    def retire(self) -> None:
        """Ask the server to end permanently, without waiting."""
        self._closed = True
        self._hang_up()

    def _find(self) -> list[str]:
        command = given_command()
        return command if len(command) > 1 else [far_python(self._host)]

    def _launch(self, model: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
        text, place = Path(far_end.__file__).read_bytes(), self._place()
        python = self._command[0] if len(self._command) == 1 else "python3"
        former = self._place(self.starts - 1)
        far = [python, "-I", "-c", BOOT.format(size=len(text)), place, former, str(self._silent_s)]
        ssh = [*ssh_command(), "-L", f"{self.socket}:{place}/{self.socket.name}", self._host, f"exec {shlex.join(far)}"]
        keeper = [sys.executable, "-I", "-c", KEEPER, str(os.getpid()), str(self.folder)]
        with self._log.open("wb") as log:
            process = self._process = subprocess.Popen(
                [*keeper, *ssh], bufsize=0, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._sent.clear()
        command = self._command if len(self._command) > 1 else [python, f"{place}/{SERVER}"]
        paths = ["--model", f"{place}/{model.name}", "--socket", f"{place}/{self.socket.name}"]
        with contextlib.suppress(BrokenPipeError):  # the connection has ended: the log says why
            with self._writing:
                self._write(text)
            self._send({"file": SERVER}, Path(server.__file__))
            self._send({"done": SERVER})
            threading.Thread(target=self._beat, args=[process], daemon=True).start()
            self._send_folder(model)
            variables = {**self._environment, "VLLM_RPC_BASE_PATH": place}
            self._send({"start": [*command, *paths, *options], "environment": variables})
        return process

    def _place(self, starts: int | None = None) -> str:
        """Return the remote folder of the present process or of an earlier one."""
        return f"/dev/shm/{self.folder.name}-{self._number}-{self.starts if starts is None else starts}"

    def _beat(self, process: subprocess.Popen[bytes]) -> None:
        """Send heartbeats to a server until it has ended."""
        with contextlib.suppress(BrokenPipeError):
            while process is self._process:
                self._send({})
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._silent_s / BEATS)
                    return

    def _send_folder(self, weights: Path) -> None:
        """Send the files of a folder. The server sees it when all have arrived."""
        if weights.name in self._sent:
            return
        for file in sorted(weights.iterdir()):
            self._send({"file": f"{weights.name}/{file.name}"}, file)
        self._send({"done": weights.name})
        self._sent.add(weights.name)

    def _send(self, head: Mapping[str, Any], file: Path | None = None) -> None:
        """Send a line and a file. Raise BrokenPipeError if the connection has ended."""
        with self._writing:
            size = {} if file is None else {"bytes": file.stat().st_size}
            self._write(json.dumps({**head, **size}).encode() + b"\n")
            if file is not None:
                with file.open("rb") as stream:
                    while data := stream.read(CHUNK):
                        self._write(data)

    def _write(self, data: bytes) -> None:
        stream, left = None if self._process is None else self._process.stdin, memoryview(data)
        if stream is None or stream.closed:
            raise BrokenPipeError("the connection has ended")
        while left:
            left = left[stream.write(left) :]

    def _hang_up(self) -> None:
        """Close the connection's input, which ends the server. Kill a connection that does not accept more data."""
        if (process := self._process) is None or process.stdin is None:
            return
        if not self._writing.acquire(timeout=1):
            kill_group(process.pid)
            return
        process.stdin.close()
        self._writing.release()


REMOTE: Final = Remote(RemoteProcess, ssh_command)
