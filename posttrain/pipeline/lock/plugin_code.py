"""Plugins from other distributions as part of a run's code: their version and a digest of their files."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from posttrain.settings.plugins import Plugin

COMPILED: Final = "__pycache__"
DIGITS: Final = 16


def plugin_version(plugin: Plugin) -> str:
    """Return the version of a plugin's distribution and the digest of its files, e.g. `1.0 sha256:0123456789abcdef`."""
    digest = hashlib.sha256()
    for name, file in sorted(_named_files(plugin).items()):
        digest.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"{plugin.version} sha256:{digest.hexdigest()[:DIGITS]}"


def is_plugin_version(version: str) -> bool:
    """Tell whether a version in a run's packages belongs to a plugin."""
    return " sha256:" in version


def plugin_files(plugin: Plugin) -> list[Path]:
    """Return the files of a plugin's distribution, without installation metadata."""
    return sorted(_named_files(plugin).values())


def _named_files(plugin: Plugin) -> dict[str, Path]:
    """Return name -> file. The names are the same for installed and editable distributions."""
    return _module_files(plugin) | _listed_files(plugin)


def _listed_files(plugin: Plugin) -> dict[str, Path]:
    """Return the files that the distribution lists. An editable one lists only installation metadata."""
    try:
        listed = distribution(plugin.distribution).files or []
    except PackageNotFoundError:
        return {}
    places = {file.as_posix(): Path(str(file.locate())) for file in listed if _counts(file.parts)}
    return {name: place for name, place in places.items() if place.is_file()}


def _module_files(plugin: Plugin) -> dict[str, Path]:
    """Return the files of the plugin's package or module, wherever they are."""
    spec = find_spec(plugin.module.partition(".")[0])
    if spec is None:
        return {}
    if not spec.submodule_search_locations:
        return {Path(spec.origin).name: Path(spec.origin)} if spec.origin else {}
    return {
        file.relative_to(Path(folder).parent).as_posix(): file
        for folder in spec.submodule_search_locations
        for file in Path(folder).rglob("*")
        if file.is_file() and _counts(file.relative_to(folder).parts)
    }


def _counts(parts: tuple[str, ...]) -> bool:
    """Tell whether a file is code or data of a distribution: not compiled, and not installation metadata."""
    about = parts[0].endswith((".dist-info", ".egg-info", ".pth")) or parts[0].startswith(("..", "/", "__editable__"))
    return COMPILED not in parts and not about
