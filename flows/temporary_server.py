"""A Prefect server that ends with this process, and is started again if it dies before."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.errors import PipelineError
from posttrain.isolation.library import library_command, library_environment
from posttrain.measure.terminal import escaped

from . import server
from .server import AUTH, SERVER_AUTH, START_TIMEOUT, Lock, answers, api, attach, find, listen, login

TRIES = 3
"""How often in a row a server may die before it answers. Then it is given up, and its log may say why."""
PROBE = 2.0
"""The seconds after which the server is asked again."""
_LOGS_KEPT = 20


@dataclass
class TemporaryServer:
    """A server of this process.

    This process opens the port and keeps it open, so that calls to a server that has died wait for the next one instead
    of failing. The next one has the same database.
    """

    home: Path
    url: str
    """The address of its API."""
    listener: socket.socket
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    start: Lock
    _process: subprocess.Popen[bytes] | None = None
    _ending: bool = False
    _answered: bool = False
    _known: threading.Event = field(default_factory=threading.Event)
    """Set when the server has answered for the first time, or was given up."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        """Wait until the server answers. Then other servers of this folder may start."""
        self._known.wait(START_TIMEOUT)
        if not self._answered:
            fix = "Read that file, or start a server with `posttrain server`"
            raise PipelineError(what=f"Prefect's server did not start{self._end()}", where=str(self.log), fix=fix)

    def watch(self) -> None:
        """Start the server, and start it again whenever it dies.

        If it dies several times before it answers, close the port, so that calls fail.
        """
        started = threading.Event()
        # The kernel ends the server when the thread that started it ends, so one thread starts all of them.
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        # Registered before Prefect is imported, and so run after Prefect has sent its last logs and events.
        atexit.register(self.stop)
        started.wait()

    def stop(self) -> None:
        """End the server."""
        with self._changing:
            self._ending = True
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _run(self, started: threading.Event) -> None:
        try:
            self._keep(started)
        finally:
            self._known.set()
            started.set()
            self.listener.close()

    def _keep(self, started: threading.Event) -> None:
        tries = 0
        while tries < TRIES and (process := self._spawn()) is not None:
            started.set()
            tries = 0 if self._answers(process) else tries + 1
            self.start.release()
            process.wait()
            if self._ending:
                return
            self._say("starting it again" if tries < TRIES else "giving it up")
            if tries < TRIES and not self._may_start():
                return

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until a server answers or ends; tell whether it has answered."""
        while process.poll() is None:
            if answers(self.url, PROBE):
                self._answered = True
                self._known.set()
                return True
        return False

    def _say(self, then: str) -> None:
        print(f"Prefect's server has ended{self._end()}; {then}. Its log: {self.log}", file=sys.stderr, flush=True)

    def _end(self) -> str:
        """Return how the last server ended, in words."""
        code = None if self._process is None else self._process.poll()
        return "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"

    def _may_start(self) -> bool:
        """Wait for other starting servers of this folder; say if that takes too long."""
        try:
            self.start = Lock(self.home / "starting")
        except PipelineError as error:
            print(escaped(f"error: {error}"), file=sys.stderr, flush=True)
            return False
        return True

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._changing, self.log.open("ab") as output:
            if self._ending:
                return None
            # A session of its own: Ctrl-C must not end the server before the flow has reported its final state.
            self._process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[self.listener.fileno()],
                start_new_session=True,
            )
            return self._process


def connect(home: Path) -> TemporaryServer | None:
    """Point Prefect to the running server, or to a new temporary server, for which the caller must wait."""
    url = find(home)
    if url is not None:
        attach(home, url)
        return None
    return start_temporary(home)


def start_temporary(home: Path) -> TemporaryServer:
    """Start a server and point Prefect to it. This process opens the port, so no other process can take it."""
    env = {**library_environment(), SERVER_AUTH: login(home)}
    start = Lock(home / "starting")
    listener = listen(0)
    words = ["--socket", str(listener.fileno()), "--parent", str(os.getpid())]
    command = library_command(server.__name__, *words)
    made = TemporaryServer(home, api(listener), listener, command, env, _new_log(home / "servers"), start)
    made.watch()
    os.environ["PREFECT_API_URL"], os.environ[AUTH] = made.url, login(home)
    # By default each request is retried for a minute; a server of this process answers, or has died for good.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")
    return made


def _new_log(folder: Path) -> Path:
    """Return the log file of this process's server. Remove the folder's oldest logs."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.log"), key=lambda file: file.name)[: -_LOGS_KEPT + 1]:
        old.unlink(missing_ok=True)
    return folder / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.log"
