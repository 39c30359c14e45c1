"""A copy of this checkout in which a real pipeline can run without touching anything here.

    python -m tests.workspace DEST [PARAMS_FILE]

The copy runs its own code, even in an environment whose editable install points elsewhere: `python -m` puts the working
folder first in sys.path, and stages are started that way; `environment` removes what could undo it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCTS = ("dvc.lock", "report/", "code/")


class Finished(subprocess.CompletedProcess[str]):
    """A finished command whose output is one text."""


def make_workspace(dest: Path, params_file: Path | None = None, *, cache: Path | None = None) -> Path:
    """Copy the tracked and the new files of the checkout to `dest` and commit them there.

    `params_file` takes the place of params.yaml, and what the pipeline made here is left out then. `cache` is a
    DVC cache to share, else the copy has its own, empty one.
    """
    dest = Path(dest)
    if dest.exists() and any(dest.iterdir()):
        raise FileExistsError(f"{dest} is not empty")
    dest.mkdir(parents=True, exist_ok=True)
    for name in _files():
        if params_file is not None and name.startswith(PRODUCTS):
            continue
        target = dest / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    if params_file is not None:
        shutil.copyfile(params_file, dest / "params.yaml")
    if cache is not None:
        local = dest / ".dvc" / "config.local"
        local.write_text(f"[cache]\n    dir = {cache.resolve()}\n", encoding="utf-8")
    git(dest, "init", "--quiet", "--initial-branch=main")
    git(dest, "config", "user.name", "workspace")
    git(dest, "config", "user.email", "workspace@localhost")
    git(dest, "config", "commit.gpgsign", "false")
    git(dest, "config", "core.hooksPath", "no-hooks")
    git(dest, "add", "--all")
    git(dest, "commit", "--quiet", "--message", "workspace")
    # imported here: what a stage's process has imported counts in the digest of its code
    from posttrain.pipeline.lock.repair_dvc import repair_lock

    repair_lock(dest)  # as `make env` does: it keeps DVC's site cache in the workspace
    return dest


def environment() -> dict[str, str]:
    """This process' environment, off the Hub, with its own python first and without what points to another checkout."""
    dropped = (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "DVC_ROOT",
        "DVC_STAGE",
        "MAKEFLAGS",  # those of `make test`, which a make of a test is not part of
        "MAKELEVEL",
        "MFLAGS",
        "PYTHONPATH",
        "PYTHONSAFEPATH",
    )
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    return {**kept, **offline, "PATH": path}


def run(workspace: Path, *command: str, timeout: float | None = None) -> Finished:
    """Run a command in the workspace; its output is kept, whatever its exit status."""
    done = subprocess.run(
        command,
        cwd=workspace,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Finished(done.args, done.returncode, done.stdout)


def dvc(workspace: Path, *arguments: str, timeout: float | None = None) -> Finished:
    """Run DVC in the workspace."""
    return run(workspace, sys.executable, "-m", "dvc", *arguments, timeout=timeout)


def stage(workspace: Path, name: str, *arguments: str, timeout: float | None = None) -> Finished:
    """Run one stage's command in the workspace, without DVC."""
    return run(workspace, sys.executable, "-m", f"stages.{name}", *arguments, timeout=timeout)


def git(workspace: Path, *arguments: str) -> str:
    """Run git in the workspace and give its output."""
    done = run(workspace, "git", *arguments)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)} in {workspace}: {done.stdout}")
    return done.stdout


def _files() -> list[str]:
    """Tracked files and new ones that git does not ignore, as they are on disk."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = ((name, ROOT / name) for name in sorted(set(listed.split("\0"))) if name)
    return [name for name, path in paths if path.is_file() or path.is_symlink()]


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    params_file = Path(arguments[1]) if len(arguments) == 2 else None
    print(make_workspace(Path(arguments[0]), params_file))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
