"""What may differ from run to run and must change nothing: each is a way to start the same stages elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.kills import digests, prepared
from benchmarks.faults.processes import Server

STAGES = (
    *("data_samples compared", "reward main", "preference dpo", "online ppo", "completions sft", "evaluate sft"),
    *("data_tasks two_step", "base_scratch tiny", "sft main"),
)
"""Those that need a trained policy come first: the base and the SFT model of the fault tests have learned nothing."""
YEAR_S = 366 * 86_400


@dataclass(frozen=True)
class Surroundings:
    """The environment of the processes, the workspace's folder, and what is done in a stage's process first."""

    env: dict[str, str] = field(default_factory=dict)
    folder: str = "w"
    changes: tuple[str, ...] = ()


PLAIN = Surroundings()
OTHER = {
    "clock": Surroundings({"TZ": "Asia/Kathmandu"}, changes=("later",)),
    "hash seed": Surroundings({"PYTHONHASHSEED": "7"}),
    "folder": Surroundings(folder="deeper and/with spâces/and 'quotes'/w"),
    "locale": Surroundings({"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}),
    "umask": Surroundings(changes=("private",)),
    "order of files": Surroundings(changes=("reversed_folders",)),
    "cold cache": Surroundings({"HOME": "{new}", "HF_HOME": "{new}/hf", "XDG_CACHE_HOME": "{new}/cache"}),
    "no home": Surroundings({"HOME": "/dev/null", "HF_HOME": "/dev/null/hf", "XDG_CACHE_HOME": "/dev/null/cache"}),
    "library threads": Surroundings(
        {"OMP_NUM_THREADS": "2", "POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    ),
    "columns of a terminal": Surroundings({"COLUMNS": "40", "TERM": "dumb", "NO_COLOR": "1"}),
}
"""Name -> surroundings that differ from the plain ones in this one way."""


def all_others() -> Surroundings:
    """Everything different at once."""
    env = {name: value for one in OTHER.values() for name, value in one.env.items()}
    changes = tuple(change for one in OTHER.values() for change in one.changes)
    return Surroundings(env, OTHER["folder"].folder, changes)


def made(
    smoke: Path, place: Path, where: Surroundings, *, stages: tuple[str, ...] = STAGES, threads: int = 1
) -> dict[str, str]:
    """Run the stages one after the other; the digests of every file."""
    workspace = prepared(smoke, place / where.folder)
    with started(place, where) as server:
        for stage in stages:
            ended = server.run(
                workspace, stage, before="benchmarks.faults.surroundings:change",
                given={"names": where.changes, "threads": threads},
            )  # fmt: skip
            if ended.status:
                raise RuntimeError(f"{stage}: {ended.output}")
    return digests(workspace)


@contextmanager
def started(place: Path, where: Surroundings) -> Iterator[Server]:
    """A server of forks in these surroundings."""
    (place / "new").mkdir(parents=True, exist_ok=True)
    context: AbstractContextManager[Server] = Server(
        {name: value.replace("{new}", str(place / "new")) for name, value in where.env.items()}
    )
    with context as server:
        yield server


def change(names: list[str], threads: int) -> None:
    """In the stage's process: what no environment variable can change, and the parameter `threads` of every run."""
    for name in names:
        CHANGES[name]()
    if threads != 1:
        from benchmarks.faults.changes import setting

        runs = ("base.scratch.tiny", "sft.runs.main", "data.samples.compared", "reward.runs.main")
        for run in (*runs, "preference.runs.dpo", "online.runs.ppo", "evaluate.settings"):
            setting([*run.split("."), "device"], f"{{threads: {threads}}}")


def later() -> None:
    """A clock that is a year ahead."""
    now, now_ns, local = time.time, time.time_ns, time.localtime
    time.time = lambda: now() + YEAR_S
    time.time_ns = lambda: now_ns() + YEAR_S * 10**9
    time.localtime = lambda seconds=None: local(now() + YEAR_S if seconds is None else seconds)


def private() -> None:
    """New files that only their owner may read."""
    os.umask(0o077)


def reversed_folders() -> None:
    """Folders that list their files the other way round."""
    listed, scanned = os.listdir, os.scandir

    class Scan:
        def __init__(self, path: Any = ".") -> None:
            with scanned(path) as entries:
                self._entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __iter__(self) -> Iterator[Any]:
            return iter(self._entries)

        def __next__(self) -> Any:
            if not self._entries:
                raise StopIteration
            return self._entries.pop(0)

        def __enter__(self) -> Scan:
            return self

        def __exit__(self, *_: object) -> None:
            self._entries = []

        def close(self) -> None:
            self._entries = []

    os.listdir = lambda path=".": sorted(listed(path), reverse=True)
    os.scandir = Scan  # type: ignore[assignment,misc]


CHANGES = {"later": later, "private": private, "reversed_folders": reversed_folders}
