"""Faults other than kills: damaged and foreign checkpoints, a full disk, two runs at once."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.faults.kills import digests, outputs, prepared
from benchmarks.faults.processes import Ended, Server
from tests.workspace import environment

STAGE = "sft main"
FILES = ("tensors.safetensors", "state.json", "sums.json")
HOWS = ("flip", "cut", "empty", "gone", "noise")
TMPFS = 'mount -t tmpfs -o "size=$1" tmpfs checkpoints && shift && exec "$@"'
"""A mount that only the stage's process sees, gone with it."""


class Bench:
    """One stage with its reference outputs, and workspaces in which it was cut short or has just finished."""

    def __init__(self, server: Server, smoke: Path, folder: Path, stage: str = STAGE) -> None:
        self.server, self.stage, self._folder, self._number = server, stage, folder, 0
        self.finished = prepared(smoke, folder / "finished")
        ended = server.run(self.finished, stage)
        assert ended.status == 0, ended.output
        self.expected = digests(self.finished)

    def copy(self) -> Path:
        """A workspace with the finished run's checkpoints and without its outputs, as DVC leaves it."""
        self._number += 1
        target = self._folder / f"copy{self._number}"
        shutil.copytree(self.finished, target)
        for out in outputs(self.stage):
            path = target / out
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return target

    def recovers(self, workspace: Path, *, naming: str = "") -> bool:
        """Whether the next run ends as if nothing had happened, and names what it passed over."""
        ended = self.server.run(workspace, self.stage)
        return ended.status == 0 and naming in ended.output and digests(workspace) == self.expected


def checkpoints_of(workspace: Path) -> list[Path]:
    return sorted((workspace / "checkpoints").rglob("step-*"))


def one_damaged(bench: Bench, seed: int) -> bool:
    """The newest checkpoint is damaged: it is named, and the one before it taken."""
    from benchmarks.faults.changes import damage

    rng, workspace = random.Random(seed), bench.copy()
    newest = checkpoints_of(workspace)[-1]
    damage(str(newest / rng.choice(FILES)), rng.choice(HOWS), seed)
    return bench.recovers(workspace, naming=f"checkpoint skipped: {newest}") and len(checkpoints_of(workspace)) <= 2


def all_damaged(bench: Bench, seed: int) -> bool:
    """Every checkpoint is damaged: each is named, and the run starts over."""
    from benchmarks.faults.changes import damage

    rng, workspace = random.Random(seed), bench.copy()
    for folder in checkpoints_of(workspace):
        damage(str(folder / rng.choice(FILES)), rng.choice(HOWS), seed)
    return bench.recovers(workspace, naming="checkpoint skipped")


def foreign(bench: Bench, seed: int) -> bool:
    """The checkpoints of another run lie in the place of this one's: they are named, and the run starts over."""
    workspace, other = bench.copy(), bench.copy()
    place = checkpoints_of(workspace)[0].parent
    params = other / "params.yaml"
    params.write_text(params.read_text().replace("epochs: 0.25", f"seed: {seed + 1}, epochs: 0.25"))
    shutil.rmtree(other / "checkpoints")
    assert bench.server.run(other, bench.stage).status == 0
    shutil.rmtree(place)
    shutil.copytree(checkpoints_of(other)[0].parent, place)
    return bench.recovers(workspace, naming="of another run")


def small_files(limit: int) -> None:
    """In the stage's process: no file may grow beyond the limit, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def full_disk(bench: Bench, seed: int) -> bool:
    """A file cannot grow: the stage says so, keeps what was there, and the next run resumes."""
    workspace = bench.copy()
    before = [path.name for path in checkpoints_of(workspace)]
    if seed % 2:  # without checkpoints, so that it is a checkpoint which cannot be written
        shutil.rmtree(workspace / "checkpoints")
        before = []
    limit = random.Random(seed).randrange(20_000, 400_000)
    ended = bench.server.run(
        workspace, bench.stage, before="benchmarks.faults.damage:small_files", given={"limit": limit}
    )
    return (
        _reported(ended, "Free some disk space")
        and [path.name for path in checkpoints_of(workspace)] == before
        and not list(workspace.rglob("*.tmp")) + list(workspace.rglob("*.partial")) + list(workspace.rglob(".step-*"))
        and bench.recovers(workspace)
    )


def full_tmpfs(bench: Bench, seed: int) -> bool:
    """A real file system that is too small for the checkpoints: refused before the first step."""
    workspace = bench.copy()
    shutil.rmtree(workspace / "checkpoints")
    (workspace / "checkpoints").mkdir()
    size = random.Random(seed).randrange(100_000, 2_000_000)
    command = ["unshare", "--mount", "sh", "-c", TMPFS, "sh", str(size), sys.executable, "-m", "stages.sft", "main"]
    env = environment() | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=False)
    ended = Ended(done.returncode, done.stdout + done.stderr, 0.0, None)
    reported = _reported(ended, "Free some disk space") and "of disk space, but" in ended.output
    return reported and bench.recovers(workspace)


def can_mount() -> bool:
    """Whether this machine lets us mount a small file system of our own."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


def two_at_once(bench: Bench, _seed: int) -> bool:
    """A second process of a running stage names the first one and changes nothing."""
    workspace = bench.copy()
    holder = "import sys, time; sys.argv = ['the first']; "
    holder += "from posttrain.pipeline.workspace import lock_stage; lock_stage('sft@main'); print('held', flush=True); "
    holder += "time.sleep(600)"
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=workspace, env=environment() | {"PYTHONPATH": root}, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        before = digests(workspace)
        second = bench.server.run(workspace, bench.stage)
        reported = _reported(second, f"process {first.pid} (the first) is using the stage sft@main")
        reported = reported and digests(workspace) == before
        first.kill()
    return reported and bench.recovers(workspace)


def _reported(ended: Ended, words: str) -> bool:
    """Whether a stage ended with one clear error that says this."""
    lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    return ended.status == 1 and len(lines) == 1 and words in lines[0] and "Traceback" not in ended.output


FAULTS: dict[str, tuple[Callable[[Bench, int], bool], int, str]] = {
    "newest checkpoint damaged": (one_damaged, 5, "named, resumed from the one before it, same bytes"),
    "all checkpoints damaged": (all_damaged, 10, "named, run from the start, same bytes"),
    "checkpoint of another run": (foreign, 20, "named, run from the start, same bytes"),
    "disk full while writing": (full_disk, 5, "one clear error, what was there kept, next run resumes"),
    "disk too small for checkpoints": (full_tmpfs, 40, "refused before the first step, next run resumes"),
    "second run in one workspace": (two_at_once, 40, "refused with the name of the first, nothing changed"),
}
"""Name -> (the fault, by how much rarer than a kill it is tried, how it is survived)."""


def damaged(server: Server, smoke: Path, folder: Path, count: int, first: int = 0) -> dict[str, dict[str, Any]]:
    """Try every fault; how often each was tried and survived."""
    bench, found = Bench(server, smoke, folder), {}
    for name, (fault, rarer, how) in FAULTS.items():
        if fault is full_tmpfs and not can_mount():
            continue
        tried = max(count // rarer, 1)
        survived = sum(fault(bench, seed) for seed in range(first, first + tried))
        found[name] = {"tried": tried, "survived": survived, "how": how}
    return found
