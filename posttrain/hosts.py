"""A run on several hosts: the first one starts it as ever, each other one joins it by `python -m posttrain join`.

A joining host keeps one connection to the first process of the run: it says who it is and what code, settings and inputs
it has, gets the size of the run, and from then on each side notices by it that the other has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, NoReturn

import psutil

from posttrain import inputs, launch
from posttrain.code import read_params
from posttrain.errors import ParamsError, PipelineError
from posttrain.params import did_you_mean
from posttrain.stage_table import STAGES, group_of
from posttrain.workspace import PARAMS_FILE, library_command

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
MOST: Final = 4
"""Differences between two hosts that an error names."""


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
    """Where this host stands among those of a run; None where a run has one host."""
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


def _patience() -> float:
    return float(_number(WAIT, 1)) if os.environ.get(WAIT) else WAIT_S


def share(processes: int, at: Place) -> range:
    """The numbers of a host's processes."""
    each, rest = divmod(processes, at.hosts)
    if rest:
        what = f"processes = {processes} cannot be divided among {HOSTS} = {at.hosts}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Use a multiple of {at.hosts}")
    return range(at.host * each, (at.host + 1) * each)


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
        """What has come within some time; `closed` is set once nothing more can come."""
        if not self.closed and select.select([self.socket], [], [], seconds)[0]:
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

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self.socket.close()

    def interface(self) -> dict[str, str]:
        """The network interface that this connection uses, for torch."""
        local = self.socket.getsockname()[0].partition("%")[0]
        names = (name for name, all_of in psutil.net_if_addrs().items() for one in all_of if one.address == local)
        name = os.environ.get(launch.GLOO, "") or next(names, "")
        return {launch.GLOO: name} if name else {}


def identity(run: str) -> dict[str, Any]:
    """The code, the settings and the inputs of this host, which all hosts must share."""
    used: dict[str, Any] = inputs.used() or {"params": {PARAMS_FILE: read_params()}}
    return {"stage": run, **json.loads(json.dumps(used))}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], host: int) -> list[str]:
    """What two hosts do not share, in words."""
    here, there = (dict(_flat(one)) for one in (ours, theirs))
    found = []
    for key in sorted(here.keys() | there.keys(), key=lambda one: (one[0] != "params", one)):
        if here.get(key) != there.get(key):
            kind, *path = key
            values = f" ({here.get(key, 'none')} on host 0, {there.get(key, 'none')} on host {host})"
            shown = "" if kind == "inputs" or "files" in path else values[:200]
            found.append(f"{' '.join(path)}{shown}")
    return found


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, (*path, str(key)))
    else:
        yield path, value


class Others:
    """The other hosts, as the first process of the run sees them."""

    def __init__(self, run: str, stage: str, at: Place, size: int) -> None:
        """Wait until all have joined."""
        self._run, self._at, self._size = run, at, size
        self._lines: dict[int, Line] = {}
        self._deaths: dict[int, launch.Death] = {}
        if at.host != 0:
            fix = f"Run `python -m posttrain join {stage.replace('@', '/')}` here, and the stage on host 0"
            raise PipelineError(what=f"this is host {at.host}, which joins a run", where=run, fix=fix)
        self._own = identity(stage)
        self._listener, self.bound = _listen(at)
        with contextlib.closing(self._listener):
            self._gather(time.monotonic() + _patience())
        self.meeting, self._store = _meeting(at, self.bound)

    def _gather(self, until: float) -> None:
        unknown: list[Line] = []
        remind = time.monotonic()
        while len(self._lines) < self._at.hosts - 1:
            missing = ", ".join(str(one) for one in range(1, self._at.hosts) if one not in self._lines)
            if time.monotonic() > until:
                fix = f"See what they say, or set {WAIT} to more seconds"
                what = f"of {self._at.hosts} hosts, {missing} did not join at {self._at.address} in time"
                raise PipelineError(what=what, where=self._run, fix=fix)
            if time.monotonic() >= remind:
                remind += REMIND_S
                print(f"{self._run}: waits at {self._at.address} for host {missing}", flush=True)
            known = [*unknown, *self._lines.values()]
            ready = select.select([self._listener, *(one.socket for one in known)], [], [], launch.POLL_S)[0]
            if self._listener in ready:
                unknown.append(Line(self._listener.accept()[0]))
            for line in unknown:
                for hello in line.messages(0):
                    self._greet(line, hello)
            for host in [host for host, line in self._lines.items() if list(line.messages(0)) or line.closed]:
                self._lines.pop(host).close()
            for line in unknown:
                if line.closed and line not in self._lines.values():
                    line.close()
            unknown = [one for one in unknown if not one.closed and one not in self._lines.values()]

    def _greet(self, line: Line, hello: dict[str, Any]) -> None:
        """Take a host into the run or say why not; one that has something else ends the run too."""
        host, hosts, theirs = hello.get("host"), hello.get("hosts"), hello.get("identity")
        if not isinstance(host, int) or not isinstance(theirs, dict) or line in self._lines.values():
            line.closed = True
        elif theirs.get("stage") != self._own["stage"]:
            line.send(refused=f"host 0 runs {self._own['stage']} now")
            line.closed = True
        elif host in self._lines or not 0 < host < self._at.hosts or hosts != self._at.hosts:
            taken = f"has {self._at.hosts} hosts, not {hosts}" if hosts != self._at.hosts else f"has a host {host}"
            line.send(refused=f"the run {taken} already" if hosts == self._at.hosts else f"the run {taken}")
            line.closed = True
        elif wrong := differences(self._own, theirs, host):
            what = f"host {host} has something else than host 0: {', '.join(wrong[:MOST])}"
            line.send(refused=what)
            fix = "Use the same folder, or the same commit and `dvc pull`, on all hosts"
            raise PipelineError(what=what, where=self._run, fix=fix)
        else:
            self._lines[host] = line
            print(f"{self._run}: host {host} has joined", flush=True)

    def start(self) -> dict[str, str]:
        """Let the hosts start their processes; returns the environment for this host's."""
        for line in self._lines.values():
            line.send(size=self._size, meeting=self.meeting)
        return next(iter(self._lines.values())).interface()

    def deaths(self) -> list[launch.Death]:
        """What has ended on the other hosts before the run."""
        for host, line in self._lines.items():
            for message in line.messages(0):
                with contextlib.suppress(TypeError):
                    self._deaths[host] = launch.Death(**message)
            if line.closed and host not in self._deaths:
                self._deaths[host] = launch.Death(0, f"host {host} has ended or cannot be reached", "")
        return list(self._deaths.values())

    def end(self, error: str | None) -> None:
        """Tell the others that the run is over, and why if it failed."""
        for line in self._lines.values():
            line.send(over=error)
            line.close()


def _listen(at: Place) -> tuple[socket.socket, str]:
    """A socket at the first host's address, or at all if its own name leads to itself alone, as Debian's does."""
    try:
        family, _, _, _, address = socket.getaddrinfo(at.name, at.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PipelineError(what=f"the name {at.name} is unknown ({error})", where=ADDRESS, fix="Correct it") from error
    bound = str(address[0])
    if bound.startswith("127.") and at.name != "localhost" and not at.name.startswith("127."):
        bound = "0.0.0.0"
    try:
        return socket.create_server((bound, at.port), family=family), bound
    except OSError as error:
        fix = "Use a free port, and a name of this host itself (on Kubernetes: of a headless Service)"
        what = f"this host cannot listen at {at.address} ({error.strerror})"
        raise PipelineError(what=what, where=ADDRESS, fix=fix) from error


def _meeting(at: Place, bound: str) -> tuple[str, Any]:
    """Where the processes meet: torch's store, at the same address and any free port."""
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    listener = socket.create_server((bound, 0), family=family)
    port = listener.getsockname()[1]
    own = at.name
    store = TCPStore(
        own, port, None, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )
    return f"tcp://{f'[{own}]' if ':' in own else own}:{port}", store


def join(name: str) -> str:
    """Start this host's processes of a run that another host starts, and end with it."""
    stage, run = _run_of(name)
    at = place()
    if at is None or at.host == 0:
        what = f"{HOSTS} is not set" if at is None else "this is host 0, which starts the run"
        fix = f"Set {HOSTS}, {HOST} and {ADDRESS} (docs/processes.md)" if at is None else "Run `dvc repro` here"
        raise PipelineError(what=what, where=f"join {name}", fix=fix)
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _stopped)
    inputs.fix(f"{stage}@{run}")
    joining = _Joining(f"{stage}@{run}", at)
    return joining.run(library_command(f"stages.{stage}", run))


def _stopped(number: int, _: Any) -> NoReturn:
    print(f"error: this host was told to end ({signal.Signals(number).name}), which ends the run", file=sys.stderr)
    raise SystemExit(128 + number)


def _run_of(name: str) -> tuple[str, str]:
    stage, _, run = name.replace("@", "/").partition("/")
    group = next((one.group for one in STAGES if one.name == stage and one.makes == "model"), None)
    if group is None:
        fix = did_you_mean(stage, [one.name for one in STAGES if one.makes == "model"])
        raise PipelineError(what=f"no stage '{stage}' that trains", where=f"join {name}", fix=fix)
    runs = group_of(read_params(), group)
    if run not in runs:
        raise ParamsError(what=f"no run {group}.{run}", where=PARAMS_FILE, fix=did_you_mean(run, list(runs)))
    if runs[run].get("processes", 1) == 1:
        what = f"{group}.{run} has processes: 1, so there is nothing to join"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Set processes")
    return stage, run


class _Joining:
    """This host's side of the connection."""

    def __init__(self, run: str, at: Place) -> None:
        self._run, self._at, self._children = run, at, None
        self._over: str | None = None

    def run(self, command: list[str]) -> str:
        line, size, meeting = self._welcomed()
        numbers = share(size, self._at)
        print(f"{self._run}: joined as host {self._at.host}, processes {numbers[0] + 1} to {numbers[-1] + 1} of {size}")
        children = launch.Children(command, size, numbers, meeting, line.interface())
        try:
            return self._watch(line, children)
        finally:
            line.close()
            children.kill()

    def _welcomed(self) -> tuple[Line, int, str]:
        """The connection to the first host, the size of the run and where its processes meet."""
        until, remind = time.monotonic() + _patience(), time.monotonic() + 1
        line: Line | None = None
        while True:
            if line is None:
                line = self._connected()
            for message in line.messages(launch.POLL_S) if line else ():
                if "refused" in message:
                    fix = "Use the same folder or commit, settings and inputs on all hosts, and a number for each"
                    raise PipelineError(what=str(message["refused"]), where=self._run, fix=fix)
                if isinstance(message.get("size"), int) and isinstance(message.get("meeting"), str):
                    return line, message["size"], message["meeting"]
            if line and line.closed:
                line = None
            if line is None:
                time.sleep(launch.POLL_S)
            if time.monotonic() > until:
                fix = f"Start the run there, correct {ADDRESS}, or set {WAIT} to more seconds"
                what = f"host 0 did not start the run at {self._at.address} in time"
                raise PipelineError(what=what, where=self._run, fix=fix)
            if time.monotonic() > remind:
                remind += REMIND_S
                print(f"{self._run}: waits for host 0 at {self._at.address}", flush=True)

    def _connected(self) -> Line | None:
        try:
            line = Line(socket.create_connection((self._at.name, self._at.port), timeout=REMIND_S))
        except OSError:
            return None
        line.send(host=self._at.host, hosts=self._at.hosts, identity=identity(self._run))
        return line

    def _watch(self, line: Line, children: launch.Children) -> str:
        dead: float | None = None
        while True:
            for message in line.messages(launch.POLL_S):
                if "over" in message:
                    return self._ended(message["over"], children)
            if line.closed:
                return self._ended("host 0 has ended or cannot be reached", children)
            if children.deaths() and dead is None:
                dead = time.monotonic()
            if dead and time.monotonic() > dead + launch.GRACE_S:
                death = min(children.deaths(), key=lambda one: one.order)
                line.send(**asdict(death))
                if death.output:
                    print(death.output, file=sys.stderr)
                raise death.error(self._run)

    def _ended(self, error: str | None, children: launch.Children) -> str:
        if error is None and children.ended(launch.LEAVING_S) and not children.deaths():
            return f"{self._run}: the run is done"
        what = error or "the run is over, and processes of this host were not"
        raise PipelineError(what=f"host 0 ended the run: {what}", where=self._run, fix=launch.RESUME)
