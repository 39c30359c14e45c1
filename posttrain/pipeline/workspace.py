"""The paths of a workspace, and the lock that prevents two processes from running the same stage."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

from posttrain.files import is_outside
from posttrain.locks import hold, remove_unlocked

PARAMS_FILE = "params.yaml"
VERIFY: Final = "Run `posttrain repair verify`, which removes damaged files, then `dvc repro`"
ROOT_VARIABLE = "POSTTRAIN_ROOT"
"""The variable with the main workspace, which a sweep sets for its experiments. `dvc exp run` sets DVC_ROOT to a
clone."""
DONE = "done"
"""The file in a run's checkpoints with the digest of the plot that the finished run wrote."""
_DIGEST = "md5: "


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
    """Return the folder of the rollouts that a run trained on."""
    return Path("rollouts") / name.replace("@", "/")


def main_root() -> Path:
    """Return the main workspace, even inside a copy in which DVC or a sweep runs a stage."""
    return Path(os.environ.get(ROOT_VARIABLE) or os.environ.get("DVC_ROOT") or ".")


def checkpoint_path(name: str) -> Path:
    """Return the folder of a stage's checkpoints in the main workspace."""
    return main_root() / "checkpoints" / name.replace("@", "/")


def failure_path(stage: str) -> Path:
    """Return the file with the error of a stage's last run. It exists until the stage runs again."""
    return Path(".dvc/tmp/failures") / f"{stage.replace('/', '@')}.txt"


def any_outside(path: str | Path) -> bool:
    """Tell whether a path or an entry of a folder is outside the workspace."""
    return any(is_outside(entry) for entry in (path, *Path(path).glob("*")))


def lock_stage(name: str) -> None:
    """Prevent a second process from running this stage in this workspace."""
    hold(Path("checkpoints/.held") / name.replace("/", "@"), f"the stage {name} of this workspace")


def remove_committed() -> None:
    """Remove checkpoints of finished runs that DVC has recorded: the digest of their plot is in dvc.lock."""
    with contextlib.suppress(OSError):  # another stage that starts now may remove the same ones
        marks = {mark: mark.read_text(encoding="utf-8") for mark in checkpoint_path("").rglob(DONE)}
        recorded = Path("dvc.lock").read_text(encoding="utf-8") if marks else ""
        for mark, digest in marks.items():
            if digest.startswith(_DIGEST) and digest in recorded:
                remove_unlocked(mark.parent)


def recorded_digest(file: Path) -> str:
    """Return the digest of a file in dvc.lock's format."""
    return f"{_DIGEST}{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"


def cache_path() -> Path | None:
    """Return the folder for caches, DVC's own temporary folder; None without DVC."""
    folder = main_root() / ".dvc/tmp"
    return folder if folder.is_dir() else None
