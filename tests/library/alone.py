"""The library alone: a fresh environment without the pipeline's packages, a clone without the pipeline's folders.

    python -m tests.library.alone       # `make test-library`

It installs the core, counts its distributions, adds the extra `lora` and the test tools, and runs the library's tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.workspace import ROOT, environment, make_workspace

FOLDER: Final = ROOT / ".library"
WITHOUT: Final = ("stages", "flows", "tasks", "posttrain/pipeline", "posttrain/plugins")
"""What the clone lacks: the pipeline, and plugins where there are some."""
TESTS: Final = ("tests/library",)
TOOLS: Final = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
MOST: Final = 55
"""Distributions that the core may install."""


def main() -> int:
    """Make the clone and the environment, and run the tests in them; the exit code of pytest."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    clone = make_workspace(FOLDER / "clone")
    for part in WITHOUT:
        shutil.rmtree(clone / part, ignore_errors=True)
    python = FOLDER / "env/bin/python"
    venv.create(FOLDER / "env", with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt"]
    _run([*pip, "setuptools"], clone)
    _run([*pip, "--no-build-isolation", "-e", "."], clone)
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True)
    names = {one["name"] for one in json.loads(listed.stdout)} - {"pip", "setuptools"}
    print(f"the core installs {len(names)} distributions", flush=True)
    if len(names) > MOST:
        print(f"error: more than {MOST}: {', '.join(sorted(names))}", file=sys.stderr)
        return 1
    _run([*pip, "--no-build-isolation", "-e", ".[lora]", *TOOLS], clone)
    skipped = [line.split()[0] for line in _lines(clone / "tests/library/skipped.txt")]
    options = ["-n", "2", "-m", "not slow", "--confcutdir", "tests/library", "-p", "no:cacheprovider"]
    options += [word for test in skipped for word in ("--deselect", test)]
    return _run([python, "-m", "pytest", "-q", *options, *TESTS], clone, check=False)


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def _run(words: Sequence[str | Path], folder: Path, *, check: bool = True) -> int:
    env = {**environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=env, check=check).returncode


if __name__ == "__main__":
    raise SystemExit(main())
