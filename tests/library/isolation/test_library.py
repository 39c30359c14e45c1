"""Commands that run a module of the library."""

from __future__ import annotations

import os
import subprocess
import sys

from posttrain.isolation.library import LIBRARY, library_command, library_environment, python_path


def test_the_command_and_its_environment() -> None:
    assert library_command("posttrain.laws", "a") == [sys.executable, "-P", "-m", "posttrain.laws", "a"]
    environment = library_environment()
    assert environment["PYTHONPATH"] == python_path() and environment["PATH"] == os.environ["PATH"]
    assert python_path().split(os.pathsep)[0] == str(LIBRARY)


def test_a_module_is_found_from_any_folder(tmp_path: object) -> None:
    code = "import posttrain; print(posttrain.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=str(tmp_path), env=library_environment(),
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == str(LIBRARY / "posttrain/__init__.py")
