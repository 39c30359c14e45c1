"""A project outside the checkout. `init` writes it; `upgrade` adapts it to the installed package."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError, PipelineError, shortened
from posttrain.extras import PIPELINE, need
from posttrain.files import write_json, write_text
from posttrain.isolation.library import LIBRARY
from posttrain.measure.provenance import code_differences
from posttrain.pipeline.by_name import CODE_OF_CHECKOUT, STAGE_COMMAND
from posttrain.pipeline.checks.editor_schema import editor_schema
from posttrain.pipeline.lock.artifacts import joined, split_artifacts
from posttrain.pipeline.lock.code_manifest import FOLDER, Library, code_path, read_code, run_names
from posttrain.pipeline.lock.graph import DVC_YAML
from posttrain.pipeline.lock.package_pin import PINNED, describe_package, installed, pinned
from posttrain.pipeline.lock.repair_dvc import repair_lock
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.report import plots_page
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean

TEMPLATE: Final = LIBRARY / "posttrain" / "pipeline" / "template"
RECIPES: Final = ("sft-dpo", "rlvr", "eval-only")
OURS: Final = {".dvc/plots/curves.json": "curves.json"}
"""Files besides dvc.yaml that `upgrade` updates -> their places in the package."""
FILES: Final = {
    ".gitignore": "gitignore",
    ".dvcignore": "dvcignore",
    ".dvc/config": "dvc_config",
    ".vscode/settings.json": "vscode_settings",
    "README.md": "README.md",
    "AGENTS.md": "AGENTS.md",
    "prefect.yaml": "prefect.yaml",
    "custom/rewards.py": "rewards.py",
    "data/none.parquet": "none",
    "models/none": "none",
}
"""Files that belong to the user after they are written."""
SCHEMA: Final = Path(".vscode/params.schema.json")
FILLED: Final = ("metrics", "plots", "results")
"""Folders that the report depends on, even if no run fills them."""
CHECKOUT: Final = f"      - constraints.txt\n      - custom\n{CODE_OF_CHECKOUT}"
"""What the stage `code` depends on in a checkout. In a project, it depends on posttrain.lock instead."""
MOST: Final = 4
"""The most changes of a run in a line."""
RUN_AGAIN: Final = "has to run again"


def init(folder: Path, recipe: str) -> str:
    """Write a project that uses the installed package. Return the next steps."""
    if recipe not in RECIPES:
        raise ParamsError(what=f"no recipe '{recipe}'", where="--recipe", fix=did_you_mean(recipe, RECIPES))
    if folder.exists() and not folder.is_dir():
        raise PipelineError(what="this is a file", where=str(folder), fix="Choose a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        fix = "Choose a new or an empty folder; nothing was written"
        raise PipelineError(what="the folder is not empty", where=str(folder), fix=fix)
    if not shutil.which("git"):
        raise PipelineError(what="git was not found", where="PATH", fix="Install git, e.g. apt-get install git")
    need(PIPELINE)
    with _whole(folder):
        _initialise(folder)
        for name, text in {**_current(), "params.yaml": _read(f"recipes/{recipe}.yaml")}.items():
            write_text(folder / name, text)
        for name, source in FILES.items():
            write_text(folder / name, _read(source))
        for rows in sorted((TEMPLATE / "rows").iterdir()):
            write_text(folder / "my/data" / rows.name, rows.read_text(encoding="utf-8"))
        for name in FILLED:
            write_text(folder / name / ".gitkeep", "")
        _pin(folder)
        repair_lock(folder)  # keeps DVC's own files in the project
        if importlib.util.find_spec("vl_convert"):  # else `dvc plots show` loads its scripts from the network
            plots_page.install(folder)
    return "\n".join(
        [
            f"wrote a project with the recipe {recipe} to {folder}. Next:",
            f"  cd {folder}",
            "  posttrain check                # checks params.yaml, runs nothing",
            "  dvc repro                      # runs it, in about a minute",
            "  posttrain show results         # the numbers",
            "  git add --all && git commit",
        ]
    )


def upgrade(mode: str) -> str:
    """Return the installed package's changes to a project, and whether they were written."""
    if pinned() is None:
        return "A clone upgrades by git; `upgrade` is for projects of `init` (docs/versions.md)"
    lines = upgrade_project(mode)
    if not lines:
        return f"{PINNED} names the installed package: nothing to upgrade"
    end = "Written. Then: dvc repro" if mode == "write" else "To write it: posttrain init --upgrade --yes"
    if any(RUN_AGAIN in line for line in lines):
        lines.append(
            "`posttrain accept` keeps the results of these runs, if you know that the new code computes the same"
        )
    return "\n".join([*lines, end])


def upgrade_project(mode: str) -> list[str]:
    """Return the installed package's changes to a project as lines; empty without changes, and outside a project."""
    old = pinned()
    if old is None:
        return []
    lines, new = [], installed()
    if {name: old[name] for name in new} != new:
        lines += [f"{PINNED}: {describe_package(old)} -> {describe_package(new)}", *_stale()]
    for name, text in _current().items():
        file = Path(name)
        present = file.read_text(encoding="utf-8") if file.is_file() else ""
        present, artifacts = split_artifacts(present) if name == DVC_YAML else (present, "")  # which `promote` adds
        before = old.get("files", {}).get(name)
        if present == text or before == _digest(text):  # the package's own did not change
            continue
        lines += [
            "",
            *difflib.unified_diff(present.splitlines(), text.splitlines(), name, f"{name} (new)", lineterm=""),
        ]
        if present and _digest(present) != before:
            lines.append(f"You have edited {name}: it is left as it is. Take these changes over by hand")
        elif mode == "write":
            write_text(file, joined(text, artifacts))
    if lines and mode == "write":
        _pin(Path())
    return lines


def _stale() -> Iterator[str]:
    """Yield the runs whose code or packages have changed."""
    library, settings = Library(), read_yaml(PARAMS_FILE)
    if not FOLDER.is_dir():
        return
    for stage in run_names(settings):
        old = read_code(code_path(stage))
        if old and (changed := code_differences(old, library.code(stage, settings))):
            more = f" and {len(changed) - MOST} more" if len(changed) > MOST else ""
            yield f"  {stage} {RUN_AGAIN}: {', '.join(changed[:MOST])}{more}"


def _current() -> dict[str, str]:
    """Return the project files that the package determines. dvc.yaml is the checkout's, with other commands."""
    graph = STAGE_COMMAND.sub(r"posttrain run \1", _read("graph.yaml"))
    files = {DVC_YAML: graph.replace(CHECKOUT, f"      - {PINNED}\n      - custom\n")}
    return files | {name: _read(source) for name, source in OURS.items()}


def _pin(folder: Path) -> None:
    """Write posttrain.lock: the package, and digests of its files here, from which `upgrade` sees later edits.

    Also write the schema of params.yaml, which editors use.
    """
    files = {name: _digest(text) for name, text in _current().items()}
    write_text(folder / SCHEMA, editor_schema())
    write_json(folder / PINNED, {**installed(), "files": files})


def _initialise(folder: Path) -> None:
    """Make the folder a git and DVC repository."""
    quiet = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    for words in (
        ["git", "init", "--quiet", "--initial-branch=main"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
    ):
        done = subprocess.run(words, cwd=folder, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            what = shortened((done.stderr or done.stdout), 300)
            raise PipelineError(
                what=what, where=" ".join(words), fix="Fix it and run this again; no files were left behind"
            )


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Yield a new or empty folder. If writing fails, it is emptied or removed again."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if new and folder.is_dir():
            folder.rmdir()
        if isinstance(error, OSError):
            where, fix = str(error.filename or folder), "Fix it and run this again; no files were left behind"
            raise PipelineError(what=str(error.strerror or error), where=where, fix=fix) from error
        raise


def _read(name: str) -> str:
    return (TEMPLATE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
