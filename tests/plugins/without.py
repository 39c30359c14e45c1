"""posttrain without its own plugins: each folder is taken away in a clone, and then all of them.

    python -m tests.plugins.without [NAME ...]      # `make test-plugins`

Without one folder the architecture tests, `check`, `plan` and recipes/smoke.yaml pass, and one line on stderr says what
is gone. Without all of them the quick tests pass.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.workspace import ROOT, environment, make_workspace

PLUGINS = "posttrain/plugins"
PAGES = ("tests/architecture/test_current.py", "tests/architecture/test_structure.py")
"""Tests of what is written about all files of a checkout: dvc.lock, code/ and the page of counts."""
SECURITY = "tests/architecture/test_docs.py::test_a_page_names_only_what_exists[SECURITY.md]"
"""The page names tests of plugins."""
QUIET = "tests/pipeline/commands/test_width.py"
"""Compares all that a command writes to a terminal, where the line about what is gone is too."""
SMOKE = "recipes/smoke.yaml"


def folders() -> list[str]:
    """Return the names of our own plugins."""
    return sorted(file.parent.name for file in (ROOT / PLUGINS).glob("*/__init__.py"))


def clone(folder: Path, without: Sequence[str], params: Path | None) -> Path:
    """Make a clone that lacks these plugins and their tests."""
    made = make_workspace(folder, params)
    for name in without:
        shutil.rmtree(made / PLUGINS / name)
        shutil.rmtree(made / "tests/plugins" / name)
    return made


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in a clone; raise with its output where it fails."""
    env = {**environment(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed in {folder}:\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}")
    return done


def say_what_is_gone(folder: Path, without: Sequence[str]) -> None:
    """Run `check` and `plan`; each has to say in one line on stderr what is gone."""
    for command in ("check", "plan"):
        lines = [line for line in run(folder, "posttrain", command).stderr.splitlines() if "gone" in line]
        if len(lines) != 1:
            raise SystemExit(f"posttrain {command} without {', '.join(without)}: {len(lines)} lines say so")
        print(f"{command}: {lines[0]}", flush=True)


def without_one(name: str) -> None:
    """Test a clone without one plugin."""
    with tempfile.TemporaryDirectory() as scratch:
        made = clone(Path(scratch, "clone"), [name], ROOT / SMOKE)
        leave = [word for page in PAGES for word in ("--ignore", page)]
        leave += ["--deselect", SECURITY]
        run(made, "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *leave, "tests/architecture")
        say_what_is_gone(made, [name])
        run(made, "dvc", "repro", "--quiet")
    print(f"without {name}: passed", flush=True)


def without_all() -> None:
    """Run the quick tests in a clone without any plugin."""
    with tempfile.TemporaryDirectory() as scratch:
        made = clone(Path(scratch, "clone"), folders(), None)
        say_what_is_gone(made, folders())
        leave = [word for page in PAGES for word in ("--ignore", page)]
        leave += ["--deselect", SECURITY, "--ignore", QUIET]
        run(made, "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "not slow", *leave, "tests")
    print("without all plugins: passed", flush=True)


if __name__ == "__main__":
    for one in sys.argv[1:] or folders():
        without_one(one)
    if not sys.argv[1:]:
        without_all()
