"""The packages that only parts of posttrain need, and the pip command that installs them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from posttrain.errors import PackageError

PIPELINE: Final = "pipeline"
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    PIPELINE: (
        "datasets",
        "dvc",
        "fastapi",
        "pandera",
        "prefect",
        "psutil",
        "ruamel.yaml",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    ),
    "plots": ("vl_convert",),
    "lora": ("peft", "accelerate"),
    "languages": ("py3langid",),
}
"""Extra -> the import names of its packages."""
CORE: Final = ("torch", "transformers", "safetensors", "pydantic", "polars")


def package_error(error: ModuleNotFoundError) -> PackageError | None:
    """Return an error with the pip command if a package could not be imported; None if no extra contains the module."""
    missing = (error.name or "").split(".")[0]
    for extra, packages in {"": CORE, **EXTRAS}.items():
        if missing in {package.split(".")[0] for package in packages}:
            return _lacks(extra, missing) if _has_core() else _not_installed()
    return None


def need(extra: str) -> None:
    """Raise if a package of an extra is missing."""
    if not _has_core():
        raise _not_installed()
    missing = [package for package in EXTRAS[extra] if not _is_installed(package)]
    if missing:
        raise _lacks(extra, missing[0])


def need_or_exit(extra: str) -> None:
    """Exit with one line if a package of an extra is missing. Call it before importing a stage or a flow."""
    try:
        need(extra)
    except PackageError as error:
        sys.exit(f"error: {error}")


def _has_core() -> bool:
    return all(find_spec(package) is not None for package in CORE)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it lies in is missing
        return False


def _not_installed() -> PackageError:
    what = "the packages of posttrain are not installed"
    fix = "Run `source .venv/bin/activate` first (`make env` makes .venv)"
    return PackageError(what=what, where=sys.executable, fix=fix)


def _lacks(extra: str, package: str) -> PackageError:
    what = f"{package} is not installed; it is part of the extra `{extra}`"
    return PackageError(what=what, where=sys.executable, fix=f'Run pip install "posttrain[{extra}]"')
