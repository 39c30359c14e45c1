"""A program and its tests in two threads of this process, without isolation."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from posttrain.sandbox.child import answer_calls
from posttrain.sandbox.remote import Remote


@contextlib.contextmanager
def connected(code: str, setup: str = "", entry: str | None = None) -> Iterator[tuple[Remote, str]]:
    """Yield the tests' end of a connection to a program, and why its definitions failed."""
    ours, theirs = socket.socketpair()
    given = {"code": code, "setup": setup, "entry_point": entry}
    program = threading.Thread(target=answer_calls, args=(given, theirs))
    program.start()
    try:
        remote = Remote(ours)
        yield remote, remote.loaded()
    finally:
        ours.close()
        program.join()
        theirs.close()
