"""The remote side of an ssh connection: receives weights, starts a vLLM server, and ends it on disconnect.

Its source text is sent to the other host, so it imports only the standard library.

    python -I -c TEXT FOLDER FORMER SECONDS

FOLDER is created, and removed with the server. FORMER is the previous server's folder, whose removal means that this
server has ended. If nothing arrives for SECONDS, the connection counts as lost. The input is lines of JSON:

{"file": NAME, "bytes": N}     N bytes follow: a file that is sent, e.g. of a folder of weights
{"done": NAME}                 this file, or folder of files, is complete, and gets its place in FOLDER
{"remove": NAME}               it is needed no longer
{"start": COMMAND, "environment": VARIABLES}     start the server
{}                             the other side lives
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

WATCH_S = 0.5
"""Seconds between two checks of the server."""
GRACE_S = 2.0
"""Seconds that the server has to end by itself."""
CHUNK = 1 << 20


class _EndedError(Exception):
    """The server or the connection has ended. A message, if there is one, is written to the log."""


class FarEnd:
    """A server, and the connection whose end also ends the server."""

    def __init__(self, folder: Path, silent_s: float) -> None:
        self._folder, self._silent_s = folder, silent_s
        self._input = os.dup(0)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # so that nothing else reads from the connection
        self._server: subprocess.Popen[bytes] | None = None

    def serve(self) -> int:
        """Execute the lines until the server or the connection has ended. Return the exit code."""
        try:
            while True:
                self._do(json.loads(self._line()))
        except (_EndedError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            status = self._end()
        return status

    def _do(self, head: dict[str, Any]) -> None:
        if "file" in head:
            file = self._place(head["file"], "incoming")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                left = head["bytes"]
                while left:
                    left -= stream.write(self._read(min(left, CHUNK)))
        elif "done" in head:
            self._place(head["done"], "incoming").rename(self._place(head["done"]))
        elif "remove" in head:
            shutil.rmtree(self._place(head["remove"]), ignore_errors=True)
        elif "start" in head:
            command = [*head["start"], "--parent", str(os.getpid())]
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env={**os.environ, **head["environment"]}, start_new_session=True
            )

    def _place(self, name: str, *inside: str) -> Path:
        """Return the path of a name in the folder. Reject names that lead out of it."""
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise _EndedError(f"{name!r} is not the name of a file in the folder")
        return self._folder.joinpath(*inside, path)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self._read(1)
        return line

    def _read(self, most: int) -> bytes:
        """Return bytes from the connection. Raise if it or the server has ended."""
        heard = time.monotonic()
        while not select.select([self._input], [], [], WATCH_S)[0]:
            if self._server is not None and self._server.poll() is not None:
                raise _EndedError
            if time.monotonic() > heard + self._silent_s:
                raise _EndedError(f"received nothing for {self._silent_s:g} s: the connection is lost")
        if not (data := os.read(self._input, most)):
            raise _EndedError
        return data

    def _end(self) -> int:
        """End the server and everything it started, then remove the folder, which signals the end."""
        status = 1
        if self._server is not None:
            self._server.terminate()  # vLLM then removes its own shared memory
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            status = self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return status % 256


def main() -> None:
    """Serve one connection."""
    folder, former, silent_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    latest = time.monotonic() + silent_s + 10 * GRACE_S  # then it has ended, or was killed before it could remove it
    while former.exists() and time.monotonic() < latest:
        time.sleep(0.1)
    shutil.rmtree(former, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        sys.exit(f"the folder of the server cannot be created: {error}. Servers on other hosts need /dev/shm there")
    sys.exit(FarEnd(folder, silent_s).serve())


if __name__ == "__main__":
    main()
