"""The start of every experiment in a sweep: the workspace's state at the start of the sweep, in a separate clone."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.files import write_text
from posttrain.pipeline.lineage.kept_inputs import is_in_cache
from posttrain.pipeline.lineage.user_text import cache_folder
from posttrain.pipeline.lock.digests import LOCK
from posttrain.pipeline.lock.git import git
from posttrain.pipeline.lock.lock_file import write_entries
from posttrain.pipeline.lock.lock_shape import lock_stages
from posttrain.pipeline.lock.repair_dvc import COPIES
from posttrain.pipeline.workspace import PARAMS_FILE

from .sweep_config import placed

_PLAIN = re.compile(r"[\w./ -]*")
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", "-c", "gc.auto=0")


@dataclass(frozen=True)
class Start:
    """A commit of the workspace outside the branch, and its parent."""

    root: Path
    commit: str
    baseline: str
    """The branch's last commit, under which DVC lists the experiments."""

    @classmethod
    def of(cls, root: Path) -> Start:
        """Commit the workspace's current state without changing the branch or the index."""
        baseline = git("rev-parse", "HEAD").strip()
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            git("read-tree", "HEAD", env=index)
            git("add", "--update", ":/", env=index)
            tree = git("write-tree", env=index).strip()
        named = {f"GIT_{who}_{what}": "posttrain" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return cls(
            root, git("commit-tree", tree, "-p", baseline, "-m", "start of a sweep", env=named).strip(), baseline
        )

    @contextmanager
    def cloned(self, overrides: Mapping[str, Any]) -> Iterator[Path]:
        """Yield the folder of an experiment: a temporary clone of the start with these settings.

        It is in the same place as DVC's own copies, so that `posttrain repair` removes the leftovers of a killed sweep.
        """
        copies = self.root / COPIES
        copies.mkdir(parents=True, exist_ok=True)
        top = Path(tempfile.mkdtemp(prefix="tmp", dir=copies))
        try:
            git("clone", "--quiet", "--shared", "--no-checkout", str(_top()), str(top))
            git(*_QUIET, "-C", str(top), "checkout", "--quiet", "--detach", self.baseline)
            git(*_QUIET, "-C", str(top), "restore", "--source", self.commit, "--worktree", ":/")
            for key in ("user.name", "user.email"):
                if value := git("config", "--default", "", key).strip():
                    git("-C", str(top), "config", key, value)
            folder = top / git("rev-parse", "--show-prefix").strip()
            _configure(self.root, folder)
            _forget_missing(folder / LOCK, cache_folder())
            write_params(folder / PARAMS_FILE, overrides)
            yield folder
        finally:
            shutil.rmtree(top, ignore_errors=True)

    def take(self, folder: Path, name: str) -> None:
        """Fetch an experiment from a clone into the workspace's repository."""
        ref = f"refs/exps/{self.baseline[:2]}/{self.baseline[2:]}/{name}"
        top = git("-C", str(folder), "rev-parse", "--show-toplevel").strip()
        git(*_QUIET, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", top, f"+{ref}:{ref}")


def write_params(file: Path, overrides: Mapping[str, Any]) -> None:
    """Change settings in a params.yaml and keep its comments.

    `dvc exp run -S` would drop the quotes of texts between braces, which DVC then cannot read.
    """
    from ruamel.yaml import YAML

    text = YAML()
    text.preserve_quotes = True
    text.width = 1_000_000
    data = text.load(file.read_text(encoding="utf-8"))
    wanted = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    for key, value in overrides.items():
        _place(data, key, value)
        wanted = placed(wanted, key, value)
    written = io.StringIO()
    text.dump(data, written)
    if YAML(typ="safe").load(written.getvalue()) != wanted:  # as DVC reads it
        raise PipelineError(
            what="cannot be written with the sweep's settings",
            where=PARAMS_FILE,
            fix="Write the swept runs without anchors (`&`, `*`) and without braces",
        )
    write_text(file, written.getvalue())


def _place(settings: Any, key: str, value: Any) -> None:
    """Change a setting in place, like `placed` does for a copy."""
    *above, last = key.split(".")
    for part in above:
        if not isinstance(settings.get(part), Mapping):
            settings[part] = {}
        settings = settings[part]
    settings[last] = _quoted(value)


def _quoted(value: Any) -> Any:
    """Return a value whose texts and keys are quoted where a YAML reader may need it."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_quoted(inner) for inner in value]
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else value


def _top() -> Path:
    return Path(git("rev-parse", "--show-toplevel").strip())


def _configure(root: Path, folder: Path) -> None:
    """Give a clone the workspace's DVC settings and cache."""
    from dvc.config import Config

    local = Config(str(root / ".dvc")).read("local")
    with Config(str(folder / ".dvc")).edit("local") as settings:
        settings.update(local)
        settings.setdefault("cache", {})["dir"] = str(cache_folder().resolve())


def _forget_missing(lock: Path, cache: Path) -> None:
    """Remove stages from a dvc.lock whose outputs are not on this machine, e.g. because they were not pulled.

    With such an entry, DVC does not search the run cache for the stage, so each experiment would repeat it or fail.
    """
    if not lock.is_file():
        return
    stages = lock_stages(lock.read_bytes(), str(lock))
    present = {name: entry for name, entry in stages.items() if _is_here(entry, lock.parent, cache)}
    if len(present) < len(stages):
        write_entries(present, lock.parent)


def _is_here(entry: Mapping[str, Any], folder: Path, cache: Path) -> bool:
    """Tell whether a stage's outputs are in DVC's cache, or in git and so in the clone."""
    return all(
        os.path.lexists(folder / out["path"]) or is_in_cache(str(out.get("md5", "")), cache)
        for out in entry.get("outs") or ()
    )
