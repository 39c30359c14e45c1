"""Compare the installed package with the version and digest that a project pins in posttrain.lock."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.isolation.library import LIBRARY
from posttrain.pipeline.by_name import PACKAGE

PINNED: Final = Path("posttrain.lock")
"""The file that only projects have. A checkout runs its own code, which DVC tracks."""
COMPILED: Final = "__pycache__"


def installed() -> dict[str, str]:
    """Return the version of the running package and the digest of its files."""
    digest = hashlib.sha256()
    for folder in sorted(PACKAGE):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and COMPILED not in file.parts:
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(LIBRARY).as_posix()} {content}\n".encode())
    return {"version": version("posttrain"), "digest": digest.hexdigest()}


def pinned() -> dict[str, Any] | None:
    """Return the content of posttrain.lock; None if it is missing."""
    try:
        pin = json.loads(PINNED.read_bytes())
        names = {"version": str(pin["version"]), "digest": str(pin["digest"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        fix = "Restore it: git checkout posttrain.lock"
        raise PipelineError(what="the file is damaged", where=str(PINNED), fix=fix) from error
    return {**pin, **names}


def describe_package(package: dict[str, Any]) -> str:
    """Return the version and the digest of a package as text."""
    return f"posttrain {package['version']} ({package['digest'][:12]})"


def check_installed() -> None:
    """Raise if this folder is a project that pins a different package than the installed package."""
    wanted = pinned()
    if wanted is None:
        return
    present = installed()
    if (wanted["version"], wanted["digest"]) != (present["version"], present["digest"]):
        what = f"the project uses {describe_package(wanted)}, but {describe_package(present)} is installed"
        fix = f"Run `posttrain init --upgrade`, or install {wanted['version']} again"
        raise PipelineError(what=what, where=str(PINNED), fix=fix)
