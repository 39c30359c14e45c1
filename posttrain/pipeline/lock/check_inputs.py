"""Check that runs in params.yaml make all inputs of runs. DVC itself would use outputs of removed runs."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError, PipelineError
from posttrain.files import is_outside
from posttrain.pipeline.lock.graph import value_at
from posttrain.pipeline.params.stage_table import STAGES, Settings, group_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import CUSTOM

GRAPH: Final = Path("dvc.yaml")
GROUP: Final = re.compile(r"\$\{([\w.]+)\}")
SLOT: Final = re.compile(r"(models|data|rollouts)/\$\{([\w.]+)\}(\.parquet)?")
"""A stage's dependency in dvc.yaml that a run names."""
UNUSED: Final = "none"
REMOVE: Final = "Remove it from the folder"
TYPES: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""Types that are not regular files. Reading them may never end."""


def check_input_names(stage: str | None = None) -> None:
    """Raise if an input of any run (or of this run) is not a plain file or is not made by a run in params.yaml."""
    settings = read_yaml(PARAMS_FILE)
    for where, path, outside in _folders(settings, stage):
        for what in unreadable(Path(path), outside_workspace=outside):
            raise ParamsError(what=f"{where}.path = '{path}': {what}", where=PARAMS_FILE, fix=REMOVE)
    refuse_pipes([CUSTOM, *_scripts(settings, stage)])
    outputs = {
        folder: [
            entry.output(name) for entry in STAGES if entry.makes in makes for name in group_of(settings, entry.group)
        ]
        for folder, makes in (("models", ("model",)), ("data", ("tables",)), ("rollouts", ("model", "rollouts")))
    }
    for folder, where, named in _named(settings, stage):
        name, kind = named.rsplit("/", 1) if folder == "data" and "/" in named else (named, "")
        if named != UNUSED and name not in outputs[folder]:
            from posttrain.settings.params import did_you_mean  # pydantic is slow to import

            removed = Path(folder, name).exists()
            reason = "the run that made it was removed or renamed" if removed else f"no run makes it ({folder}/)"
            fix = (
                did_you_mean(named, [f"{output}/{kind}".rstrip("/") for output in outputs[folder]])
                or "Add a run that makes it"
            )
            raise ParamsError(what=f"{where} = '{named}': {reason}", where=PARAMS_FILE, fix=fix)


def _folders(settings: Settings, stage: str | None) -> Iterator[tuple[str, str, bool]]:
    """Yield the parameter and path of each of the user's own folders, and whether it may lead out of the workspace."""
    for kind, group in (("data_files", "data.files"), ("base_folders", "base.folders")):
        for name, run in group_of(settings, group).items():
            if stage in (None, f"{kind}@{name}") and isinstance(run, Mapping) and isinstance(run.get("path"), str):
                yield f"{group}.{name}", run["path"], run.get("outside_workspace") is True


def refuse_pipes(places: Iterable[Path]) -> None:
    """Raise if one of these files, or a file in one of these folders, is a pipe or a device.

    DVC hashes own code, scripts and outputs, and would wait forever.
    """
    for place in places:
        for what in unreadable(place, outside_workspace=True):
            raise ParamsError(what=what, where=str(place), fix="Remove it")


def _scripts(settings: Settings, stage: str | None) -> Iterator[Path]:
    """Yield the script of each run that has one."""
    for entry in STAGES:
        for name, run in group_of(settings, entry.group).items():
            if stage in (None, f"{entry.name}@{name}") and isinstance(run, Mapping) and "script" in run:
                yield Path(str(run["script"]))


def unreadable(folder: Path, *, outside_workspace: bool) -> Iterator[str]:
    """Yield a folder's pipes and devices, which could be read forever, and links out of the workspace."""
    watch_links = not outside_workspace and not is_outside(folder)
    yield from _odd_type(folder)
    for here, folders, files in os.walk(folder):
        for place in (Path(here, name) for name in sorted(folders + files)):
            if watch_links and place.is_symlink() and is_outside(place):
                yield f"{place} is a link to {place.resolve()}, which is outside the workspace"
                continue
            yield from _odd_type(place)


def _odd_type(place: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # a broken link, or one in a circle
        mode = place.stat().st_mode
        yield from (f"{place} is {name}, not a file" for is_type, name in TYPES if is_type(mode))


def _named(settings: Settings, stage: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield folder, parameter and name of each model and table that a run names, from the dependencies in dvc.yaml."""
    stanzas = read_yaml(GRAPH).get("stages") if GRAPH.is_file() else {}
    if not isinstance(stanzas, Mapping) or not all(isinstance(stanza, Mapping) for stanza in stanzas.values()):
        raise PipelineError(
            what="`stages` is not a mapping of stages", where=str(GRAPH), fix="`dvc status` shows the line"
        )
    for kind, stanza in stanzas.items():
        if (match := GROUP.fullmatch(str(stanza.get("foreach")))) is None:
            continue
        group = match[1]
        for name, run in group_of(settings, group).items():
            if stage not in (None, f"{kind}@{name}"):
                continue
            for slot in filter(None, (SLOT.fullmatch(str(dep)) for dep in stanza["do"]["deps"])):
                first, _, rest = slot[2].partition(".")
                where = ".".join([f"{group}.{name}", *([rest] if rest else [])]) if first == "item" else slot[2]
                value = value_at({**settings, "item": run}, slot[2])
                if isinstance(value, str):
                    yield slot[1], where, value
