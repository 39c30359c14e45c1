"""The packages of the wheel: those under posttrain/, and the folders that pyproject.toml puts inside the pipeline.

pyproject.toml can find packages or list them, but it cannot do both. A clone of the library alone lacks these folders.
"""

import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
FOLDERS = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]


def packages() -> list[str]:
    """Return the packages under posttrain/ and in the moved folders."""
    found = set(find_namespace_packages(str(HERE), include=["posttrain*"]))
    for package, folder in FOLDERS.items():
        if (HERE / folder).is_dir():
            found |= {package, *(f"{package}.{inner}" for inner in find_namespace_packages(str(HERE / folder)))}
    return sorted(name for name in found if "__pycache__" not in name)


setup(packages=packages())
