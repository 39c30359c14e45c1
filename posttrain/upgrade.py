"""`python -m posttrain upgrade`: the present layout and, in a project, the installed package; written with --yes."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any, Final, Literal

from posttrain.dvc_repair import LOCK
from posttrain.errors import ParamsError, PipelineError
from posttrain.formats import PARAMS, check_format
from posttrain.installed import PINNED
from posttrain.params import FORMAT, PARAMS_FILE, read_yaml
from posttrain.project import upgrade_project
from posttrain.sections import check_params
from posttrain.upgrade_params import upgraded
from posttrain.workspace import write_text

BACKUP: Final = Path("version-0.1")
"""Where everything that version 0.1 wrote is kept."""
COMMENT: Final = re.compile(r"(?:^|\s)(#.*\S)", re.MULTILINE)
BLANK: Final = re.compile(r"\n{3,}")
"""Blank lines of two sections that became one."""
OLD_STAGES: Final = ("prepare", "pairs", "evaluate_model@base")
"""Stages that only version 0.1 has."""


def upgrade(mode: Literal["show", "write"]) -> str:
    """What changes, and whether it was written: in a project first what the installed package changes."""
    project = upgrade_project(mode)
    rest = _upgrade_workspace(mode)
    if not project:
        return rest
    end = "Written. Then: dvc repro" if mode == "write" else "To write it: python -m posttrain upgrade --yes"
    return "\n".join([*project, end, "", rest])


def _upgrade_workspace(mode: Literal["show", "write"]) -> str:
    """The layout and the outputs of version 0.1."""
    # A project is younger than format 1, so that a file without a format has the present one.
    found = read_yaml(PARAMS_FILE).get(FORMAT, PARAMS if PINNED.is_file() else 1)
    check_format(found, PARAMS, PARAMS_FILE, ParamsError)
    old = Path(PARAMS_FILE).read_text(encoding="utf-8")
    text, notes = (old, []) if found == PARAMS else _rewritten(old)
    outputs = _old_outputs()
    if text == old and not outputs:
        return f"{PARAMS_FILE} has format {PARAMS}: nothing to upgrade"
    lines = [
        *difflib.unified_diff(old.splitlines(), text.splitlines(), PARAMS_FILE, f"{PARAMS_FILE} (new)", lineterm="")
    ]
    if outputs:
        lines += [
            "",
            f"These outputs of version 0.1 move to {BACKUP}/, with {PARAMS_FILE} and {LOCK}; nothing is deleted:",
        ]
        lines += [f"  {path}" for path in outputs]
    lines += ["", "Then `dvc repro` runs every stage again: their names, code and formats are new."]
    if outputs:
        lines.append("To use a model of version 0.1 as it is, copy it to a folder of yours, which base.folders names.")
    lines += ["", "Look at:", *(f"  {note}" for note in notes)] if notes else []
    lines += ["", _checked(text)]
    if mode == "show":
        return "\n".join([*lines, "", "Nothing is changed yet. To write it: python -m posttrain upgrade --yes"])
    _write(text, outputs)
    return "\n".join([*lines, "", f"Written. The file of before is {BACKUP / PARAMS_FILE}"])


def _rewritten(old: str) -> tuple[str, list[str]]:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 120, True
    data, notes = upgraded(yaml.load(old))
    dumped = StringIO()
    yaml.dump(data, dumped)
    text, tidy = dumped.getvalue(), BLANK.sub("\n\n", dumped.getvalue())
    if yaml.load(tidy) == data:  # they may stand in a text of several lines
        text = tidy
    comments = (one.group(1) for one in COMMENT.finditer(old))
    return text, [*notes, *(f"comment left out: {one}" for one in comments if one not in text)]


def _old_outputs() -> list[Path]:
    """The outputs of version 0.1 that are still there, by its dvc.lock."""
    stages: dict[str, Any] = (read_yaml(LOCK).get("stages") or {}) if LOCK.is_file() else {}
    if not any(name in stages for name in OLD_STAGES):
        return []
    paths = {Path(out["path"]) for entry in stages.values() for out in entry.get("outs", [])}
    return sorted(path for path in paths if os.path.lexists(path))


def _checked(text: str) -> str:
    """What `posttrain check` says of the new file."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(PARAMS_FILE).write_text(text, encoding="utf-8")
        try:
            return check_params(here)
        except ParamsError as error:
            return f"For you to fix in the new file:\n{error}"


def _write(text: str, outputs: list[Path]) -> None:
    """Move what version 0.1 wrote, then write the new file; a run that is killed is finished by the next."""
    taken = [path for path in outputs if os.path.lexists(BACKUP / path)]
    if taken:
        what = f"{', '.join(map(str, taken[:5]))} already exists"
        raise PipelineError(what=what, where=str(BACKUP), fix=f"Move {BACKUP}/ elsewhere and run it again")
    BACKUP.mkdir(exist_ok=True)
    if not (BACKUP / PARAMS_FILE).exists():
        write_text(BACKUP / PARAMS_FILE, Path(PARAMS_FILE).read_text(encoding="utf-8"))
    for path in outputs:
        (BACKUP / path).parent.mkdir(parents=True, exist_ok=True)
        path.rename(BACKUP / path)
    if outputs:
        LOCK.rename(BACKUP / LOCK)
    write_text(Path(PARAMS_FILE), text)
