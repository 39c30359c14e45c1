"""The paths of a workspace, writing its plain files, and locks that keep two processes from the same stage."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError

PARAMS_FILE = "params.yaml"
CUSTOM = Path("custom")
"""The folder of the user's own modules."""
LIBRARY = Path(__file__).resolve().parent.parent
"""The folder of the packages posttrain, stages and flows: a checkout, or where they are installed."""
PATIENCE_S = 10.0
"""How long to wait for a lock: an orphan ends itself within a second."""
ROOT_VARIABLE = "POSTTRAIN_ROOT"
"""How a sweep names the main workspace to its experiments: `dvc exp run` sets DVC_ROOT to their clone."""
DONE = "done"
"""The file in a run's checkpoints with the digest of the plot that the finished run wrote."""
HELD = "held"
"""The lock file of a run's checkpoints."""
STALE_S = 60.0
"""How old a folder that nobody holds must be to be removed: its process may be about to hold it."""
_DIGEST = "md5: "
_HELD: dict[str, int] = {}


def model_path(name: str) -> Path:
    """Return the folder of a stage's model: `online@grpo` -> models/online/grpo."""
    return Path("models") / name.replace("@", "/")


def table_path(name: str) -> Path:
    """Return the file of a table: `two_step/chat` -> data/two_step/chat.parquet."""
    return Path("data") / f"{name}.parquet"


def metrics_path(name: str) -> Path:
    """Return the file of a stage's metrics."""
    return Path("metrics") / f"{name.replace('@', '/')}.json"


def plot_path(name: str) -> Path:
    """Return the file of a stage's metrics per step."""
    return Path("plots") / f"{name.replace('@', '/')}.csv"


def rollouts_path(name: str) -> Path:
    """Return the folder of the rollouts that a run was trained on."""
    return Path("rollouts") / name.replace("@", "/")


def main_root() -> Path:
    """Return the main workspace, also where DVC or a sweep runs a stage in a copy of it."""
    return Path(os.environ.get(ROOT_VARIABLE) or os.environ.get("DVC_ROOT") or ".")


def checkpoint_path(name: str) -> Path:
    """The folder of a stage's checkpoints, in the main workspace."""
    return main_root() / "checkpoints" / name.replace("@", "/")


def failure_path(stage: str) -> Path:
    """Return the file with the error of a stage's last run, until it runs again."""
    return Path(".dvc/tmp/failures") / f"{stage.replace('/', '@')}.txt"


def is_outside(path: str | Path, root: str | Path = ".") -> bool:
    """Return whether a path, with its links resolved, is outside the workspace or another folder."""
    return not Path(path).resolve().is_relative_to(Path(root).resolve())


def any_outside(path: str | Path) -> bool:
    """Return whether a path, or an entry of the folder at that path, is outside the workspace."""
    return any(is_outside(entry) for entry in (path, *Path(path).glob("*")))


def library_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of the library, also in a folder with a package of the same name."""
    return [sys.executable, "-P", "-m", module, *words]


def library_environment() -> dict[str, str]:
    """Return the environment for `library_command`."""
    return {**os.environ, "PYTHONPATH": python_path()}


def python_path() -> str:
    """PYTHONPATH for a process that runs a module of the library from any folder."""
    return os.pathsep.join(filter(None, [str(LIBRARY), os.environ.get("PYTHONPATH")]))


def write_json(path: Path, data: object, *, shared: bool = False) -> None:
    """Write plain data as a JSON file, completely or not at all."""
    write_text(path, json.dumps(data, indent=2) + "\n", shared=shared)


@contextlib.contextmanager
def atomic_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path whose file or folder replaces `path` at the end; an error leaves `path` as it was.

    `shared`: several processes or threads may write it at the same time.

    Example: `with atomic_path(file) as temporary: temporary.write_bytes(data)`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One fixed name, so that the next attempt overwrites what a killed process left.
    own = f"-{os.getpid()}-{threading.get_ident()}" if shared else ""
    temporary = path.with_name(f".{path.name}.tmp{own}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        if temporary.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            temporary.unlink()


def remove_oldest(new: Path, most: int) -> None:
    """Remove the least recently used files of a cache beyond `most` bytes, and their digests; `new` stays."""
    used: list[tuple[float, int, Path]] = []
    for file in new.parent.glob(f"*{new.suffix}"):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it at the same time
            used.append((file.stat().st_mtime, file.stat().st_size, file))
    for _, size, file in sorted(used, reverse=True):
        most -= size
        if most < 0 and file != new:
            file.unlink(missing_ok=True)
            file.with_suffix(".md5").unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """Write a text file, completely or not at all."""
    with atomic_path(path, shared=shared) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_finite_json(path: Path) -> Any:
    """Read a JSON file; numbers that are not finite are refused, as in the JSON standard."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is not finite")
    return float(text)


def rounded(values: Mapping[str, float], digits: int = 6) -> dict[str, float]:
    """Return the numbers, rounded to significant digits; a line names those that are not finite, which JSON lacks."""
    if odd := [name for name, value in values.items() if not math.isfinite(value)]:
        print(f"not finite, so left out: {', '.join(odd)}", file=sys.stderr)
    return {name: float(f"{value:.{digits}g}") for name, value in values.items() if name not in odd}


def free_memory() -> float:
    """Return the bytes of memory that are free, within the container's limit."""
    import psutil

    free = float(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError, KeyError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, float(limit - used + int(parts["inactive_file"])))  # of it, cache that can be freed
    most, _ = resource.getrlimit(resource.RLIMIT_AS)  # ulimit -v
    if most != resource.RLIM_INFINITY:
        free = max(0.0, min(free, float(most - psutil.Process().memory_info().vms)))
    return free


def format_size(size: float) -> str:
    """Return a number of bytes as text, e.g. 1.5 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def format_age(seconds: float) -> str:
    """Return a duration as text, in the largest unit with a value of two or more."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def hold(file: Path, what: str, patience_s: float = PATIENCE_S) -> None:
    """Hold a lock file until this process ends; raise with the holder's name if another process has it."""
    key, until = os.path.abspath(file), time.monotonic() + patience_s
    while key not in _HELD:
        handle = _locked(file)
        if handle is not None:
            _HELD[key] = handle
            with contextlib.suppress(OSError):  # a full disk must not stop a stage because of this line
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} ({' '.join(sys.argv)[:200]})".encode(), 0)
        elif time.monotonic() >= until:
            holder = file.read_text(encoding="utf-8", errors="replace") or "another process"
            fix = "Wait until it has ended, or end it; nothing was changed"
            raise PipelineError(what=f"{holder} is using {what}", where=str(file), fix=fix)
        else:
            time.sleep(0.1)


def held_folder(prefix: str, parent: Path, what: str) -> Path:
    """Return a new folder that only this user can enter, held until this process ends; removes those of killed ones."""
    for old in parent.glob(f"{prefix}????????"):  # the letters of mkdtemp
        with contextlib.suppress(OSError):
            state = old.lstat()
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > STALE_S:
                remove_unlocked(old)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    hold(folder / HELD, what)
    return folder


def lock_stage(name: str) -> None:
    """Keep a second process from running this stage in this workspace."""
    hold(Path("checkpoints/.held") / name.replace("/", "@"), f"the stage {name} of this workspace")


def is_locked(file: Path) -> bool:
    """Return whether a living process holds a lock file."""
    handle = _locked(file)
    if handle is not None:
        os.close(handle)
    return handle is None


def remove_unlocked(folder: Path) -> bool:
    """Remove a folder of checkpoints unless a process uses it; whether it was removed."""
    handle = _locked(folder / HELD)
    if handle is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
    return handle is not None


def remove_committed() -> None:
    """Remove the checkpoints of finished runs that DVC has recorded: dvc.lock then has the digest of their plot."""
    with contextlib.suppress(OSError):  # another stage that starts now may remove the same ones
        marks = {mark: mark.read_text(encoding="utf-8") for mark in checkpoint_path("").rglob(DONE)}
        recorded = Path("dvc.lock").read_text(encoding="utf-8") if marks else ""
        for mark, digest in marks.items():
            if digest.startswith(_DIGEST) and digest in recorded:
                remove_unlocked(mark.parent)


def recorded_digest(file: Path) -> str:
    """Return the digest of a file as dvc.lock writes it."""
    return f"{_DIGEST}{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"


def _locked(file: Path) -> int | None:
    """The handle of the lock on a file, None if another process has it; the kernel releases it when a process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # the folder was removed in between
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), file.stat()):  # else it was removed meanwhile
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
