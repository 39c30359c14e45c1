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

STARTS = 5
"""How often a server is started. One that dies again and again has a reason, and its log says which."""
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
    _answered: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _ending: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        """Wait until the server answers. Then other servers of this folder may start."""
        self._answered = answers(self.url, START_TIMEOUT)
        self.start.release()
        if not self._answered:
            fix = "Read that file, or start a server with `posttrain server`"
            raise PipelineError(what="Prefect's server did not start", where=str(self.log), fix=fix)

    def watch(self) -> None:
        """Start the server, and start it again if it dies.

        If it dies too often, or before it has ever answered, close the port, so that calls fail.
        """
        started = threading.Event()
        # The kernel ends the server when the thread that started it ends, so one thread starts all of them.
        threading.Thread(target=self._keep, args=(started,), daemon=True).start()
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

    def _keep(self, started: threading.Event) -> None:
        for again in range(STARTS):
            if again and not self._may_start_again():
                break
            process = self._spawn()
            started.set()
            if process is None:
                return
            while again and process.poll() is None and not answers(self.url):
                pass
            if again:
                self.start.release()
            process.wait()
            if self._ending:
                return
            if not self._answered:
                break
        self.listener.close()

    def _may_start_again(self) -> bool:
        print(f"Prefect's server has ended; starting it again. Its log: {self.log}", file=sys.stderr, flush=True)
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
