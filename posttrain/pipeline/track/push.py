"""Push runs to trackers, once or continuously.

Each tracker has a thread, so one that hangs or fails affects no other.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import Final, NoReturn

from posttrain.errors import ParamsError, PipelineError
from posttrain.measure.masking import masked
from posttrain.pipeline.track.runs import completions, curve, figures, is_running, named_runs, result_files, tracked
from posttrain.pipeline.track.tracker import TRACKERS, Tracker
from posttrain.pipeline.workspace import plot_path
from posttrain.settings.listing import why_unknown

PATIENCE_S: Final = 20.0
"""Seconds that a tracker may take to end after an interruption."""


FIRST: Final = ("reward", "loss", "accuracy", "margin", "length", "kl_k3", "teacher_kl", "entropy", "grad_norm")
"""The most important metrics. Trackers show their group first."""
GROUPS: Final = {"heldout_": "heldout", "reward_": "rewards"}
"""Name prefix of metrics with their own group -> the group."""


@dataclass(frozen=True)
class Plan:
    """The runs to push, and the options."""

    project: str
    trackers: Sequence[str]
    words: Sequence[str]
    """The names of the runs as given; empty: all."""
    follow: bool
    every: float
    """Seconds between checks of the files."""
    completions: int
    """The number of rows per table of completions."""


def push(plan: Plan) -> str:
    """Push the runs to all trackers. Return a summary; raise at the end if a tracker failed."""
    if lacks := missing(plan.trackers):
        fix = "Run `make env-track`, or install them into a separate environment (docs/watching.md, Trackers)"
        raise ParamsError(what=f"not installed: {', '.join(lacks)}", where=sys.executable, fix=fix)
    names, stop, said = named_runs(plan.words), Event(), list[str]()
    failed: dict[str, str] = {}

    def work(tracker: str) -> None:
        try:
            _push(tracker, names, plan, stop, said)
        except Exception as error:  # noqa: BLE001  whatever a tracker raises: the others go on
            failed[tracker] = f"{tracker}: {type(error).__name__}: {str(error).strip():.300}"

    threads = [Thread(target=work, args=(tracker,), name=tracker, daemon=True) for tracker in plan.trackers]
    for thread in threads:
        thread.start()
    _wait(threads, stop)
    failed |= {thread.name: f"{thread.name}: does not end" for thread in threads if thread.is_alive()}
    if failed:
        fix = "Run it again when the tracker can be reached, to push the missing data. Training is not affected"
        raise PipelineError(what=masked("; ".join(failed.values())), where="posttrain track", fix=fix)
    return "\n".join(said) or "no run has a curve yet"


def missing(trackers: Sequence[str]) -> list[str]:
    """Return the trackers that are not installed. Reject unknown trackers."""
    for name in trackers:
        if name not in TRACKERS:
            what, fix = why_unknown(TRACKERS, name)
            raise ParamsError(what=f"no tracker: {what}", where="posttrain track --to", fix=fix)
    needed = {name: getattr(TRACKERS[name], "package", None) for name in trackers}
    specs = {name: find_spec(package) for name, package in needed.items() if package}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]  # a folder has no origin


def _wait(threads: Sequence[Thread], stop: Event) -> None:
    """Wait for all threads. After an interruption, let each close its runs."""
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        while any(thread.is_alive() for thread in threads):
            stop.wait(0.2)
    except KeyboardInterrupt:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _push(tracker: str, names: Sequence[str], plan: Plan, stop: Event, said: list[str]) -> None:
    """Follow the runs until they have ended; without given names, until an interruption."""
    left = [Followed(tracker, name, plan) for name in names]
    while left and not stop.is_set():
        for one in list(left):
            running = is_running(one.name)  # asked before its files are read: what it wrote last is not missed
            one.look()
            if not running:
                one.close("ended")
            if not plan.follow or (plan.words and one.began and not running):
                one.close("interrupted")  # of a run that is training: what was logged has to arrive
                left.remove(one)
                said += one.said()
        if left:
            stop.wait(plan.every)
    for one in left:
        one.close("interrupted")
        said += one.said()


class Followed:
    """The state of a run at one tracker."""

    def __init__(self, tracker: str, name: str, plan: Plan) -> None:
        self.name = name
        self._to, self._plan = tracker, plan
        self._tracker: Tracker | None = None
        self._id, self._first = "", dict[str, float]()
        self._seen, self._next, self._added = 0, 0, 0
        self._marks: list[tuple[int, ...]] = []

    @property
    def began(self) -> bool:
        """Tell whether the run has a curve."""
        return bool(self._first)

    def look(self) -> None:
        """Log the steps that the tracker lacks. A curve that restarts with other settings becomes a new run."""
        marks = [_mark(file) for file in (plot_path(self.name), *result_files(self.name).values())]
        rows = curve(plot_path(self.name)) if marks != self._marks else []
        if not rows:
            return
        if self._tracker is None or len(rows) < self._seen or rows[0] != self._first:
            self._open(rows[0])
        assert self._tracker is not None
        steps = [(int(row["step"]), row) for row in rows if row["step"] >= self._next]
        if steps:
            self._tracker.log([(step, {grouped(k): v for k, v in row.items() if k != "step"}) for step, row in steps])
            self._next, self._added = steps[-1][0] + 1, self._added + len(steps)
        self._seen, self._marks = len(rows), marks

    def close(self, why: str) -> None:
        """Close the run at the tracker, with final metrics and tables if it has ended."""
        if self._tracker is None:
            return
        if why == "ended":
            self._tracker.figures(figures(self.name))
            for name, rows in completions(self.name, self._plan.completions):
                self._tracker.table(name, rows)
        self._tracker.finish()
        self._tracker = None

    def said(self) -> list[str]:
        """Return a summary as one line."""
        return [f"{self.name}: {self._seen} steps, {self._added} of them new for {self._to}"] if self.began else []

    def _open(self, first: dict[str, float]) -> None:
        run = tracked(self.name, first)
        if self._tracker is not None:
            if run.id == self._id:  # resumed from a checkpoint: the same steps come again
                return
            self.close("replaced")
        self._tracker = TRACKERS[self._to]()
        self._next = self._tracker.start(self._plan.project, run)
        self._id, self._first = run.id, first


def grouped(name: str) -> str:
    """Return the name of a metric with its group, because trackers draw a group's metrics together."""
    for start, group in GROUPS.items():
        if name.startswith(start):
            return f"{group}/{name.removeprefix(start)}"
    return f"{'curves' if name in FIRST else 'details'}/{name}"


def _mark(file: Path) -> tuple[int, ...]:
    """Return a value that changes whenever the file does."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
