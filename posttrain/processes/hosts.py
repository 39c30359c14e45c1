"""A run on several hosts: the first one starts it as ever, each other one joins it by `posttrain join`.

A joining host keeps one connection to the first process of the run: it says who it is and what code, settings and
inputs it has, gets the size of the run, and from then on each side notices by it that the other has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import psutil

from posttrain.errors import ParamsError, PipelineError
from posttrain.processes.children import GLOO
from posttrain.workspace import PARAMS_FILE

HOSTS, HOST, ADDRESS, WAIT = (f"POSTTRAIN_{name}" for name in ("HOSTS", "HOST", "ADDRESS", "JOIN_TIMEOUT"))
"""Environment: how many hosts, the number of this one from 0, host:port of the first, and how many seconds to wait."""
NUMBERS: Final = (HOST, "SLURM_NODEID", "JOB_COMPLETION_INDEX")
"""Where the number of this host is looked for: set by hand, by Slurm, by an Indexed Job of Kubernetes."""
WAIT_S: Final = 600.0
REMIND_S: Final = 30.0
LOST_S: Final = 60
"""How long a host may not answer, e.g. after a power cut."""
LONGEST: Final = 16 * 2**20
"""Bytes of a message; what connects and says more is no host of ours."""


class Place(NamedTuple):
    """Which of how many hosts this is, and where the first one listens."""

    hosts: int
    host: int
    name: str
    port: int

    @property
    def address(self) -> str:
        """The first host's address as it was given."""
        return f"{self.name}:{self.port}"


def place() -> Place | None:
    """Return where this host stands among those of a run; None where a run has one host."""
    if (hosts := _number(HOSTS, 1)) == 1:
        return None
    source = next((name for name in NUMBERS if os.environ.get(name)), None)
    if source is None:
        fix = f"Set it to 0 on the first host, and up to {hosts - 1} on the others"
        raise PipelineError(what=f"{HOSTS} = {hosts}, and this host has no number", where=HOST, fix=fix)
    if (host := _number(source, 0)) >= hosts:
        fix = f"The hosts have the numbers 0 to {hosts - 1}"
        raise PipelineError(what=f"{host} is too large for {HOSTS} = {hosts}", where=source, fix=fix)
    given = os.environ.get(ADDRESS, "")
    name, _, port = given.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 2**16:
        fix = "Set it to a name of the first host and a free port there, e.g. node-0:29500, on every host"
        raise PipelineError(what=f"'{given}' is no address", where=ADDRESS, fix=fix)
    return Place(hosts, host, name.strip("[]"), int(port))


def _number(name: str, least: int) -> int:
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise PipelineError(what=f"'{text}' is no number of {least} or more", where=name, fix="Correct or unset it")
    return int(text)


def patience_s() -> float:
    """Return how many seconds hosts wait for each other."""
    return float(_number(WAIT, 1)) if os.environ.get(WAIT) else WAIT_S


def share(processes: int, at: Place) -> range:
    """Return the numbers of a host's processes."""
    each, rest = divmod(processes, at.hosts)
    if rest:
        what = f"processes = {processes} cannot be divided among {HOSTS} = {at.hosts}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Use a multiple of {at.hosts}")
    return range(at.host * each, (at.host + 1) * each)


def on_each_host(processes: int) -> int:
    """Return how many of a run's processes a host has, or about as many where the settings of the hosts are wrong."""
    hosts = int(given) if (given := os.environ.get(HOSTS, "1")).isdecimal() and int(given) else 1
    return -(-processes // hosts)


def check_hosts(processes: int) -> None:
    """Refuse what the start of a run refuses: settings of the hosts that are wrong, or do not divide its processes."""
    if processes > 1 and (at := place()):
        share(processes, at)


def readable(sockets: Iterable[socket.socket], seconds: float) -> bool:
    """Return whether something has come by one of the sockets within some time."""
    with selectors.DefaultSelector() as selector:  # `select` takes no handle above 1023
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        return bool(selector.select(seconds))


class Line:
    """A connection between two hosts that carries one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._read = connection, b""
        connection.settimeout(LOST_S)
        for name, value in (("KEEPIDLE", LOST_S // 4), ("KEEPINTVL", LOST_S // 8), ("KEEPCNT", 6)):
            if hasattr(socket, f"TCP_{name}"):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.closed = False

    def send(self, **message: Any) -> None:
        """Say something; a host that is gone does not hear it."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield what has come within some time; `closed` is set once nothing more can come."""
        if not self.closed and readable([self.socket], seconds):
            try:
                data = self.socket.recv(65_536)
            except OSError:
                data = b""
            self._read += data
            self.closed = not data or len(self._read) > LONGEST
            *lines, self._read = self._read.split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    message = None
                if not isinstance(message, dict):
                    self.closed = True
                    return
                yield message

    def dismiss(self, **message: Any) -> None:
        """Say a last thing and hang up."""
        self.send(**message)
        with contextlib.suppress(OSError):  # what was sent before has been read, or hanging up would discard this
            self.socket.shutdown(socket.SHUT_WR)
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self.socket.close()

    def interface(self) -> dict[str, str]:
        """Return the network interface that this connection uses, for torch."""
        local = self.socket.getsockname()[0].partition("%")[0]
        names = (name for name, all_of in psutil.net_if_addrs().items() for one in all_of if one.address == local)
        name = os.environ.get(GLOO, "") or next(names, "")
        return {GLOO: name} if name else {}
