"""List DVC's experiments, and write an experiment's files in the layout of a workspace."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from posttrain.errors import DataError, PosttrainError, shortened
from posttrain.pipeline.lock.dvc_index import readable_index
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.params.stage_table import evaluated
from posttrain.pipeline.workspace import PARAMS_FILE, model_path, plot_path
from posttrain.settings.params import joined, nearest
from posttrain.settings.plain import flattened

MANIFEST = "manifest.json"
"""The file in a model's folder with each tensor's digest."""
TIMES = Path(".sweeps")
"""The seconds of every stage in an experiment. `posttrain sweep` records them, because DVC does not."""
_REF = re.compile(r"refs/exps/(\w{2})/(\w{38})/(.+)")
_LAYOUT = "%(refname) %(objectname) %(creatordate:unix)"


@dataclass(frozen=True)
class Experiment:
    """An experiment, by its name in `dvc exp show`."""

    name: str
    commit: str
    baseline: str
    """The commit that it was run on."""
    date: int

    @property
    def weights(self) -> str:
        """The command that fetches its models into the workspace."""
        if self.baseline == self.commit:
            return f"git checkout {self.name} && dvc checkout"
        return f"dvc exp apply {self.name}"

    @property
    def checkout(self) -> str:
        """The command that applies its settings to the workspace."""
        return f"`git checkout {self.name}`" if self.baseline == self.commit else f"`dvc exp apply {self.name}`"


def experiments() -> list[Experiment]:
    """Return all experiments of this repository, oldest first."""
    listed = []
    for line in git("for-each-ref", "--sort=creatordate", f"--format={_LAYOUT}", "refs/exps").splitlines():
        ref, commit, date = line.rsplit(" ", 2)
        parts = _REF.fullmatch(ref)
        if parts:
            listed.append(Experiment(parts[3], commit, parts[1] + parts[2], int(date or 0)))
    return listed


def named(name: str, among: Iterable[Experiment]) -> list[Experiment]:
    """Return the experiment with this name, or all experiments of a sweep, from all commits.

    If a name ran at several commits, HEAD's experiment counts, else the latest.
    A sweep's experiments are called SWEEP-SETTINGS. A sweep's own name contains no '-'.
    """
    matches = [experiment for experiment in among if experiment.name == name or experiment.name.startswith(f"{name}-")]
    exact = [experiment for experiment in matches if experiment.name == name]
    if exact or "-" in name:
        matches = exact
    if not matches:
        return []
    head = git("rev-parse", "HEAD").strip()
    ranked = sorted(matches, key=lambda experiment: (experiment.baseline == head, experiment.date))
    last = {experiment.name: experiment for experiment in ranked}
    return [experiment for experiment in matches if last[experiment.name] is experiment]


def unfinished(sweep: str, among: Iterable[Experiment]) -> list[str]:
    """Return the experiments of a sweep with a log but no result: running or failed."""
    known = {experiment.name for experiment in among}
    return sorted(file.stem for file in TIMES.glob(f"{sweep}-*.log") if file.stem not in known)


def commit(name: str) -> list[Experiment]:
    """Return the commit of a branch, a tag or a digest; empty if it is not in git."""
    words = (git_or_none("log", "-1", "--format=%H %ct", "--end-of-options", name, "--") or b"").decode().split()
    if not words:
        return []
    sha, date = words
    return [Experiment(name, sha, sha, int(date))]


def fetch(experiment: Experiment, policy: str, into: Path) -> Path:
    """Write the files of an experiment that a comparison needs to `into`."""
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException

    known = evaluated(read_settings(experiment))
    check_policy(policy, known, experiment.name)
    rows, model = Path("results") / policy / f"{known[policy].rows}.parquet", known[policy].model
    # imported models have no curve, and a model may be on another machine
    optional = (plot_path(model), model_path(model) / MANIFEST)
    wanted = (Path(PARAMS_FILE), rows, *optional)
    with readable_index():
        files: Any = DVCFileSystem(rev=experiment.commit)
    for path in wanted:
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with readable_index():
                if path in optional and not files.exists(path.as_posix()):
                    continue
                files.get_file(path.as_posix(), str(target))
        except (DvcException, OSError) as error:
            if path == optional[1]:
                continue
            reason = shortened(str(error), 300)
            fix = "If it ran on another machine, use `dvc exp pull` and `dvc pull`"
            raise DataError(what=f"{path} is missing ({reason})", where=experiment.name, fix=fix) from error
    return into


def check_policy(policy: str, known: Collection[str], where: str) -> None:
    """Raise if a policy is not evaluated."""
    if policy not in known:
        near = nearest(policy, list(known))
        meant = f"Did you mean '{near}'? " if near else ""
        fix = f"{meant}Its policies: {joined(list(known))}"
        raise DataError(what=f"evaluate has no policy '{policy:.80}'", where=where, fix=fix)


@contextmanager
def without_folder(folder: str | Path) -> Iterator[None]:
    """Remove a temporary folder's path from error texts, because it means nothing to the reader."""
    try:
        yield
    except PosttrainError as error:
        what, where, fix = (text.replace(f"{folder}/", "") for text in (error.what, error.where, error.fix))
        raise type(error)(what=what, where=where, fix=fix) from error


def settings_of(experiment: Experiment) -> dict[str, str]:
    """Return the experiment's params.yaml, flat."""
    return flattened(read_settings(experiment))


def read_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's params.yaml, as plain data."""
    return _settings_at(experiment.commit)


@lru_cache(maxsize=1024)
def _settings_at(commit: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    text = git("show", f"{commit}:./{PARAMS_FILE}")
    data: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return data
