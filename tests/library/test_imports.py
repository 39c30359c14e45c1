"""What importing the library does: no torch for the package, and no package of the pipeline for any module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("algorithms", "answers", "api", "data", "distributed", "evaluate", "formulas", "isolation", "laws", "measure")
ROOMS += ("models", "online", "rewards", "sampling", "sandbox", "settings", "tasks", "text", "train")
PROGRAMS = {"posttrain.sandbox.fork_server"}
"""A process of its own on Linux, which no module imports."""
BLOCKED = (
    "datasets",
    "dvc",
    "fastapi",
    "pandera",
    "prefect",
    "posttrain.pipeline",
    "posttrain.plugins",
    "psutil",
    "ruamel",
    "ruamel.yaml",
    "starlette",
    "uvicorn",
)
ELSEWHERE = ("fcntl", "resource")
"""Modules of Linux and macOS that Windows lacks; the library imports them where it uses them."""
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
importlib.import_module("transformers")  # it asks whether packages are there
for name in sys.argv[2].split(","):
    sys.modules[name] = None
for name in sys.argv[3].split(","):
    importlib.import_module(name)
"""


def modules() -> list[str]:
    files = [file for room in ROOMS for file in sorted((ROOT / "posttrain" / room).rglob("*.py"))]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return [name for name in names if name not in PROGRAMS and not name.endswith("__main__")]


@pytest.mark.timeout(300)
def test_no_module_needs_the_pipelines_packages_or_a_module_of_one_system() -> None:
    words = (",".join(BLOCKED), ",".join(ELSEWHERE), ",".join(modules()))
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing_of_torch() -> None:
    code = "import sys, posttrain; print(sorted({'torch', 'polars', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
