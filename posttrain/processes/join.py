"""`posttrain join STAGE/RUN`: this host's processes of a run that another host starts."""

from __future__ import annotations

import math
import secrets
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any, Final, NoReturn

from posttrain.errors import ParamsError, PipelineError
from posttrain.params.formats import read_yaml
from posttrain.params.params import did_you_mean
from posttrain.params.stage_table import STAGES, group_of
from posttrain.pipeline import inputs
from posttrain.processes.children import LEAVING_S, POLL_S, RESUME, Children, Death
from posttrain.processes.hosts import (
    ADDRESS,
    HOST,
    HOSTS,
    REMIND_S,
    WAIT,
    Line,
    Place,
    check_hosts,
    patience_s,
    place,
    share,
)
from posttrain.processes.others import identity, mark_path
from posttrain.workspace import PARAMS_FILE, library_command, write_text

ANSWER_S: Final = 10.0
"""How long the first host may take to end the run after it was told of a death."""


def join(name: str) -> str:
    """Start this host's processes of a run that another host starts, and end with it."""
    stage, run = _run_of(name)
    return join_run(f"{stage}@{run}", library_command(f"stages.{stage}", run))


def join_run(run: str, command: list[str]) -> str:
    """Join the run with processes of this command."""
    at = place()
    if at is None:
        fix = f"Set {HOSTS}, {HOST} and {ADDRESS} (docs/processes.md)"
        raise PipelineError(what="there is one host, so nothing to join", where=HOSTS, fix=fix)
    if at.host == 0:
        raise PipelineError(what="host 0 starts the run", where=f"join {run}", fix="Run `dvc repro` here")
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, _stopped)
    inputs.fix(run)
    return _Joining(run, at).run(command)


def _stopped(number: int, _: Any) -> NoReturn:
    what = f"stopped by {signal.Signals(number).name}. A run that this host had joined stops on all hosts"
    print(f"error: {what}", file=sys.stderr)
    raise SystemExit(128 + number)


def _run_of(name: str) -> tuple[str, str]:
    stage, _, run = name.replace("@", "/").partition("/")
    group = next((one.group for one in STAGES if one.name == stage and one.makes == "model"), None)
    if group is None:
        fix = did_you_mean(stage, [one.name for one in STAGES if one.makes == "model"])
        raise PipelineError(what=f"no stage '{stage}' that trains", where=f"join {name}", fix=fix)
    runs = group_of(read_yaml(PARAMS_FILE), group)
    if run not in runs:
        raise ParamsError(what=f"no run {group}.{run}", where=PARAMS_FILE, fix=did_you_mean(run, list(runs)))
    processes = runs[run].get("processes", 1)
    if processes == 1:
        what = f"{group}.{run} has processes: 1, so there is nothing to join"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Set processes")
    if isinstance(processes, int):  # host 0 refuses anything else
        check_hosts(processes)
    return stage, run


class _Joining:
    """This host's side of the connection."""

    def __init__(self, run: str, at: Place) -> None:
        self._run, self._at, self._busy = run, at, ""
        self._mark = secrets.token_hex(8)

    def run(self, command: list[str]) -> str:
        """Start the processes once the first host says so, and end with the run."""
        mark = mark_path(self._run, self._at.host)
        write_text(mark, self._mark)
        try:
            line, size, meeting = self._welcomed()
        finally:
            mark.unlink(missing_ok=True)
        numbers = share(size, self._at)
        shown = f"processes {numbers[0] + 1} to {numbers[-1] + 1} of {size}"
        print(f"{self._run}: joined as host {self._at.host} with {shown}", flush=True)
        children = Children(command, size, numbers, meeting, line.interface())
        try:
            return self._watch(line, children)
        except SystemExit:
            line.send(**asdict(Death(0, f"host {self._at.host} was told to end", "")))
            raise
        finally:
            line.close()
            children.kill()

    def _welcomed(self) -> tuple[Line, int, str]:
        """Return the connection to the first host, the size of the run and where its processes meet."""
        until, remind = time.monotonic() + patience_s(), time.monotonic() + 1
        line: Line | None = None
        while True:
            line = line or self._connected()
            for message in line.messages(POLL_S) if line else ():
                self._busy = str(message.get("busy", ""))
                if "refused" in message:
                    fix = "The run is not joined"
                    raise PipelineError(what=f"host 0: {message['refused']}", where=self._run, fix=fix)
                size, meeting = message.get("size"), message.get("meeting")
                if line and isinstance(size, int) and isinstance(meeting, str):
                    return line, size, meeting
            if line is None or line.closed:
                line = None
                time.sleep(1)
            if time.monotonic() > until:
                fix = f"Start the run there, correct {ADDRESS}, or set {WAIT} to more seconds"
                what = f"host 0 did not start the run at {self._at.address} in time{self._why()}"
                raise PipelineError(what=what, where=self._run, fix=fix)
            if time.monotonic() > remind:
                remind += REMIND_S
                print(f"{self._run}: waits for host 0 at {self._at.address}{self._why()}", flush=True)

    def _why(self) -> str:
        return f" ({self._busy})" if self._busy else ""

    def _connected(self) -> Line | None:
        try:
            line = Line(socket.create_connection((self._at.name, self._at.port), timeout=REMIND_S))
        except OSError as error:
            self._busy = str(error.strerror or error)
            return None
        hello = {"host": self._at.host, "hosts": self._at.hosts, "mark": self._mark}
        line.send(**hello, identity=identity(self._run))
        return line

    def _watch(self, line: Line, children: Children) -> str:
        """Wait for the end of the run; the first host hears of deaths here at once and decides what they come from."""
        told: list[Death] = []
        until = math.inf
        while True:
            for message in line.messages(POLL_S):
                if "over" in message:
                    return self._ended(message["over"], children)
            if line.closed:
                return self._ended("it has ended or cannot be reached", children)
            if new := [one for one in children.deaths() if one not in told]:
                told += new
                for death in new:
                    line.send(**asdict(death))
                until = min(until, time.monotonic() + ANSWER_S)
            if time.monotonic() > until:
                raise min(told, key=lambda one: one.order).error(self._run)

    def _ended(self, error: str | None, children: Children) -> str:
        if error is None and children.ended(LEAVING_S) and not children.deaths():
            return f"{self._run}: the run is done"
        what = error or "the run is over, and processes of this host were not"
        raise PipelineError(what=f"host 0 ended the run: {what}", where="join", fix=RESUME)
