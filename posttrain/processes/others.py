"""The other hosts of a run, as the first process of the run sees them, and what all hosts must share."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from posttrain.errors import PipelineError
from posttrain.params.formats import read_yaml
from posttrain.pipeline import inputs
from posttrain.processes.children import POLL_S, Death
from posttrain.processes.hosts import ADDRESS, HOSTS, REMIND_S, WAIT, Line, Place, patience_s, readable
from posttrain.workspace import PARAMS_FILE, checkpoint_path

MOST: Final = 4
"""Differences between two hosts that an error names."""
NAMED_S: Final = 60.0
"""How long the name of a host that has just started, e.g. a pod's, may be unknown to itself."""
LOOKS: Final = 15
"""How often a file that another host wrote is looked for, as it may take seconds to be seen."""


def identity(run: str) -> dict[str, Any]:
    """Return the code, the settings and the inputs of this host, which all hosts must share."""
    used: dict[str, Any] = inputs.used() or {"params": {PARAMS_FILE: read_yaml(PARAMS_FILE)}}
    return {"stage": run, **json.loads(json.dumps(used))}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], host: int) -> list[str]:
    """Return what two hosts do not share, in words."""
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


def mark_path(stage: str, host: int) -> Path:
    """Return where a host that joins leaves a mark, by which the first one knows that they share the folder."""
    return checkpoint_path(".held") / f"{stage}.host-{host}"


def _shares(stage: str, host: int, mark: Any) -> bool:
    for _ in range(LOOKS):
        with contextlib.suppress(OSError):
            if mark_path(stage, host).read_text(encoding="utf-8") == mark:
                return True
        time.sleep(POLL_S)
    return False


class Others:
    """The other hosts, as the first process of the run sees them."""

    def __init__(self, run: str, stage: str, at: Place, size: int) -> None:
        """Wait until all have joined."""
        self._run, self._at, self._size = run, at, size
        self._lines: dict[int, Line] = {}
        self._deaths: dict[int, list[Death]] = {}
        if at.host != 0:
            fix = f"Run `posttrain join {stage.replace('@', '/')}` here, and the stage on host 0"
            raise PipelineError(what=f"this is host {at.host}, which joins a run", where=run, fix=fix)
        self._own = identity(stage)
        self._listener, bound = _listen(at)
        self._unknown: list[Line] = []
        self._gather(time.monotonic() + patience_s())
        self.meeting, self._store = _meeting(at, bound)

    def _gather(self, until: float) -> None:
        remind = time.monotonic()
        while len(self._lines) < self._at.hosts - 1:
            missing = ", ".join(str(one) for one in range(1, self._at.hosts) if one not in self._lines)
            if time.monotonic() > until:
                fix = f"See what they print, or set {WAIT} to more seconds"
                what = f"of {self._at.hosts} hosts, {missing} did not join at {self._at.address} in time"
                raise PipelineError(what=what, where=self._run, fix=fix)
            if time.monotonic() >= remind:
                remind += REMIND_S
                print(f"{self._run}: waits at {self._at.address} for host {missing}", flush=True)
            readable([self._listener, *(one.socket for one in (*self._unknown, *self._lines.values()))], POLL_S)
            self._accept()
            for host, line in list(self._lines.items()):
                list(line.messages(0))
                if line.closed:
                    self._lines.pop(host).close()
                    print(f"{self._run}: host {host} has left", flush=True)

    def _accept(self) -> None:
        """Answer who calls; a host that comes too late, or is of another run, is told so."""
        while readable([self._listener], 0):
            with contextlib.suppress(OSError):  # who called has hung up
                self._unknown.append(Line(self._listener.accept()[0]))
        waiting, self._unknown = self._unknown, []
        for line in waiting:
            hello = next(line.messages(0), None)
            if hello is not None:
                self._greet(line, hello)
            elif line.closed:
                line.close()
            else:
                self._unknown.append(line)

    def _greet(self, line: Line, hello: dict[str, Any]) -> None:
        """Take a host into the run or say why not; one that has something else ends the run too."""
        host, hosts, theirs = hello.get("host"), hello.get("hosts"), hello.get("identity")
        if not isinstance(host, int) or not isinstance(theirs, dict):
            line.close()
        elif theirs.get("stage") != self._own["stage"]:
            line.dismiss(busy=f"it runs {self._own['stage']} now")
        elif hosts != self._at.hosts:
            line.dismiss(refused=f"the run has {self._at.hosts} hosts, and {HOSTS} is {hosts} on host {host}")
        elif host in self._lines or not 0 < host < hosts:
            line.dismiss(refused=f"the run has a host {host} already")
        elif wrong := differences(self._own, theirs, host):
            what = f"host {host} has something else than host 0: {', '.join(wrong[:MOST])}"
            self._refuse(line, what, "Use the same folder, or the same commit and `dvc pull`, on all hosts")
        elif not _shares(self._own["stage"], host, hello.get("mark")):
            what = f"host {host} has another folder {checkpoint_path('')}, and checkpoints have parts of all processes"
            self._refuse(line, what, "Put the project, or that folder, on a file system that all hosts share")
        else:
            self._lines[host] = line
            print(f"{self._run}: host {host} has joined", flush=True)

    def _refuse(self, line: Line, what: str, fix: str) -> NoReturn:
        line.dismiss(refused=f"{what}. {fix}")
        raise PipelineError(what=what, where=self._run, fix=fix)

    def start(self) -> dict[str, str]:
        """Let the hosts start their processes; returns the environment for this host's."""
        for line in self._lines.values():
            line.send(size=self._size, meeting=self.meeting)
        return next(iter(self._lines.values())).interface()

    def deaths(self) -> list[Death]:
        """Return what has ended on the other hosts before the run."""
        self._accept()
        for host, line in self._lines.items():
            found = self._deaths.setdefault(host, [])
            for message in line.messages(0):
                with contextlib.suppress(TypeError):
                    found.append(Death(**message))
            if line.closed and not found:
                found.append(Death(0, f"host {host} has ended or cannot be reached", ""))
        return [one for found in self._deaths.values() for one in found]

    def end(self, error: str | None) -> None:
        """Tell the others that the run is over, and why if it failed."""
        for line in self._lines.values():
            line.dismiss(over=error)
        self._lines.clear()
        self._listener.close()


def _listen(at: Place) -> tuple[socket.socket, str]:
    """A socket at the first host's address, or at all if its own name leads to itself alone, as Debian's does."""
    until = time.monotonic() + min(patience_s(), NAMED_S)
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(at.name, at.port, type=socket.SOCK_STREAM)[0]
            break
        except OSError as error:
            if time.monotonic() > until:
                what = f"the name {at.name} is unknown ({error.strerror})"
                raise PipelineError(what=what, where=ADDRESS, fix="Use a name of the first host") from error
        time.sleep(POLL_S)
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
    """Return where the processes meet: torch's store, at the same address and any free port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    listener = socket.create_server((bound, 0), family=family)
    port = listener.getsockname()[1]
    own = at.name
    store = TCPStore(
        own, port, None, True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener.detach()
    )
    return f"tcp://{f'[{own}]' if ':' in own else own}:{port}", store
