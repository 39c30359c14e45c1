"""Power cuts: an ext4 image that is shut down without writing out what it has in memory, as a machine that goes dark.

It needs root, loop devices and ext4. A boot id of its own is laid over the kernel's for each start of the "machine".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.ledger import Row
from benchmarks.faults.processes import Ended
from benchmarks.faults.project import ended, made, products, repro
from posttrain.pipeline.lock.digests import BOOT_ID
from tests.workspace import environment

EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
SIZE = 192 * 1024 * 1024
LATER_S = 12.0
BEGIN = f'mount --bind "$1" {BOOT_ID} && shift && exec "$@"'
DURING, AFTER, SYNCED = "during `dvc repro`", "after `dvc repro`", "after `posttrain repair sync`"
FAULTS = (DURING, AFTER, SYNCED)


class Cuts:
    """The project on an image, before its first run, and what a run that nobody disturbs gives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._image = folder / "template.img"
        with self._image.open("wb") as stream:
            stream.truncate(SIZE)
        _system("mkfs.ext4", "-q", str(self._image))
        with _mounted(self._image, folder / "template", "") as place:
            project = made(place / "project")
            whole = folder / "whole"
            shutil.copytree(project, whole, symlinks=True)
            began = time.monotonic()
            done = repro(whole)
            assert done.status == 0, done.output
            self.seconds, self.whole = time.monotonic() - began, products(whole)

    def trial(self, seed: int, fault: str = "", later_s: float = LATER_S) -> Row:
        """One power cut, then `repair` and `repro` on the machine that was started again."""
        rng = random.Random(f"cut {seed}")
        fault = fault or FAULTS[seed % len(FAULTS)]
        image, place = self._folder / f"trial{seed}.img", self._folder / f"trial{seed}"
        _system("cp", "--sparse=always", str(self._image), str(image))
        options = rng.choice(("", "commit=1"))
        with _mounted(image, place, options) as root:
            if rng.random() < 0.5:
                config = root / "project/.dvc/config"
                config.write_text(config.read_text().replace("[core]\n", f"[core]\n    site_cache_dir = {root}/site\n"))
                os.sync()
            self._run_until_cut(_Machine(self._folder, root / "project"), fault, rng, later_s)
        with _mounted(image, place, "") as root:
            outcome, wrong = self._started_again(_Machine(self._folder, root / "project"), fault)
        if not wrong:  # an image that shows a fault is kept, to be looked at
            image.unlink()
        return {"fault": fault, "outcome": outcome, "wrong": wrong}

    def _run_until_cut(self, machine: _Machine, fault: str, rng: random.Random, later_s: float) -> None:
        process = machine.started("dvc", "repro")
        if fault == DURING:
            time.sleep(self.seconds * rng.random())
        else:
            run = ended(process)
            assert run.status == 0, run.output
            assert products(machine.project) == self.whole, "the run before the cut gave other outputs"
            if fault == SYNCED:
                synced = machine.run("posttrain", "repair", "sync")
                assert synced.status == 0, synced.output
            time.sleep(later_s * rng.random())
        _cut(machine.project)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def _started_again(self, machine: _Machine, fault: str) -> tuple[str, str]:
        repaired = machine.run("posttrain", "repair")
        again = machine.run("dvc", "repro")
        stages = again.output.count("Running stage")
        outcome = f"{stages} of 4 stages ran again"
        if repaired.status or again.status:
            return outcome, f"not healed ({repaired.status}, {again.status}): {repaired.output}{again.output[-800:]}"
        if products(machine.project) != self.whole:
            return outcome, "SILENT: the outputs differ"
        if fault == SYNCED and stages:
            return outcome, f"what was synced is lost: {repaired.output}{again.output[-800:]}"
        found = machine.run("posttrain", "repair", "verify")
        return outcome, found.output if found.status else ""


class _Machine:
    """The project on a machine that has just been started."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.project = project
        self._boot = folder / f"boot-{uuid.uuid4()}"
        self._boot.write_text(f"{uuid.uuid4()}\n")

    def started(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", BEGIN, "sh", str(self._boot), sys.executable, "-m", *words],
            cwd=self.project,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> Ended:
        return ended(self.started(*words))


def why_not() -> str:
    """Why this machine cannot try power cuts; empty if it can."""
    if os.geteuid():
        return "power cuts need root"
    if missing := [tool for tool in ("mkfs.ext4", "losetup", "mount", "unshare") if shutil.which(tool) is None]:
        return f"power cuts need {', '.join(missing)}"
    if subprocess.run(["losetup", "--find"], check=False, capture_output=True).returncode:
        return "power cuts need a loop device"
    laid = subprocess.run(
        ["unshare", "--mount", "mount", "--bind", "/etc/hostname", str(BOOT_ID)], check=False, capture_output=True
    )
    return "power cuts need mounts" if laid.returncode else ""


@contextlib.contextmanager
def _mounted(image: Path, place: Path, options: str):  # type: ignore[no-untyped-def]
    place.mkdir(exist_ok=True)
    _system("mount", "-o", ",".join(filter(None, ("loop", options))), str(image), str(place))
    try:
        yield place
    finally:
        _wait_until(lambda: not subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode)
        # A mount namespace that another process opened meanwhile keeps the mount: nothing is written out until then.
        _wait_until(lambda: not _system("losetup", "--associated", str(image)).strip())


def _wait_until(done: Callable[[], bool], most_s: float = 120.0) -> None:
    """Wait for processes that were killed, or that others started next to this, to let go of a mount."""
    end = time.monotonic() + most_s
    while not done():
        if time.monotonic() > end:
            raise RuntimeError("an image stays mounted, here or in another mount namespace")
        time.sleep(0.1)


def _cut(place: Path) -> None:
    """From now on nothing reaches the image, and what is in memory only is lost."""
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(handle)


def _system(*words: str) -> bytes:
    return subprocess.run(words, check=True, capture_output=True).stdout
