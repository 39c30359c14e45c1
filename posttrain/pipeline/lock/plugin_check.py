"""Compare installed plugins with plugins listed in code/ and records/, and list the names that plugins register."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from posttrain.errors import PipelineError, PluginError
from posttrain.pipeline.lock.code_manifest import FOLDER, Library, code_path, read_code, run_names
from posttrain.pipeline.lock.plugin_code import is_plugin_version
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plugins import Plugin, every, find

RECORDS: Final = Path("records")
AGAIN: Final = "Run `dvc repro -s -f code`, then `dvc repro`"


def check_plugins(*stages: str) -> None:
    """Raise if a plugin listed in code/ is not installed or has changed. Without `stages`, check all runs.

    If a run added a plugin after the stage `code` ran, this is not an error: DVC sees the change of params.yaml.
    """
    paths = [code_path(stage) for stage in stages] or sorted(FOLDER.rglob("*.json"))
    named = {path: plugins for path in paths if (plugins := _named(path))}
    for path, plugins in named.items():
        for name, made in plugins.items():
            if not _installed(name):
                what = f"it uses a plugin of the package {shown(name, made)}, which is not installed"
                fix = f"{install(name, made)}, or remove the plugin from {PARAMS_FILE} and run `dvc repro -s -f code`"
                raise PipelineError(what=what, where=str(path), fix=fix)
    if not named:
        return
    library, settings = Library(), read_yaml(PARAMS_FILE)
    for stage in stages or run_names(settings):
        plugins = named.get(path := code_path(stage), {})
        present = library.code(stage, settings)["packages"] if plugins else {}
        for name in sorted(plugins.keys() & present.keys()):
            if plugins[name] != present[name]:
                what = f"the package of a plugin changed: {name} {plugins[name]} -> {present[name]}"
                raise PipelineError(what=what, where=str(path), fix=AGAIN)
    library.outlines.keep()


def missing_in_records() -> str:
    """Return a text about missing packages in records and how to install them; empty if none is missing."""
    missing: dict[tuple[str, str], str] = {}
    for file in sorted(RECORDS.rglob("*.json")):
        for name, made in _named(file).items():
            if not _installed(name):
                missing.setdefault((name, made), str(file))
    return ". ".join(
        f"{file} uses a plugin of the package {shown(name, made)}, which is not installed. {install(name, made)}"
        for (name, made), file in missing.items()
    )


def lacks_plugins() -> bool:
    """Tell whether code/ lists a plugin whose package is not installed."""
    return any(missing_in(file) for file in FOLDER.rglob("*.json"))


def missing_in(file: Path) -> dict[str, str]:
    """Return distribution -> version and digest, for plugins listed in a file but not installed."""
    return {name: made for name, made in _named(file).items() if not _installed(name)}


def plugin_lines() -> list[str]:
    """Return a line for each other distribution with its registered names, and notes on unusable names."""
    by_package: dict[str, list[Plugin]] = {}
    for plugin in every():
        if not plugin.is_ours:
            by_package.setdefault(f"{plugin.distribution} {plugin.version}", []).append(plugin)
    lines = []
    for package, plugins in sorted(by_package.items()):
        names = ", ".join(f"{plugin.group} {plugin.name}" for plugin in plugins)
        lines += [f"plugins of {package}: {names}", *(f"note: {note}" for note in map(_fault, plugins) if note)]
    return lines


def _fault(plugin: Plugin) -> str:
    """Return why a plugin's name cannot be used, as far as this is known without importing it."""
    if plugin.is_gone:
        return f"{plugin.where} of {plugin.distribution} is gone. {plugin.gone_fix}"
    try:
        used = find(plugin.group, plugin.name)
    except PluginError as error:
        return str(error)
    if used != plugin or plugin.name in _own_names(plugin.group):
        return f"{plugin.where} of {plugin.distribution} is not used: posttrain has this name itself"
    return ""


@cache
def _own_names(group: str) -> frozenset[str]:
    """Return the library's own names in a group, from the outlines of its modules."""
    library = Library()
    outlines = (library.outlines.of(str(file), "") for file in library.modules.values() if file.is_absolute())
    listings = [listing for outline in outlines for listing in outline.listings if listing[2:] == [group]]
    return frozenset(name for listing in listings for name, (module, _) in library.rows(*listing).items() if module)


def _named(file: Path) -> dict[str, str]:
    """Return distribution -> version and digest, for plugins in a file of code/ or records/."""
    code = read_code(file) if file.is_relative_to(FOLDER) else _code_of_record(file)
    return {name: made for name, made in (code or {}).get("packages", {}).items() if is_plugin_version(made)}


def _code_of_record(file: Path) -> dict[str, dict[str, str]] | None:
    try:
        code = json.loads(file.read_bytes()).get("code")
    except (OSError, ValueError, AttributeError):
        return None
    return code if isinstance(code, dict) else None


def is_missing(name: str, made: str) -> bool:
    """Tell whether an entry of a run's packages belongs to a plugin that is not installed."""
    return is_plugin_version(made) and not _installed(name)


def _installed(name: str) -> bool:
    return _has_files(name) and not any(plugin.is_gone for plugin in every() if plugin.distribution == name)


def _has_files(name: str) -> bool:
    """Tell whether a distribution's metadata exists. Its modules may still be missing."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def shown(name: str, made: str) -> str:
    """Return a distribution with its version."""
    return f"{name} {made.partition(' ')[0]}"


def install(name: str, made: str) -> str:
    """Return an instruction to install the version of a distribution that a run used."""
    package = f"{name}=={made.partition(' ')[0]}"
    again = "Install it again: python -m pip install --force-reinstall"
    return f"{again if _has_files(name) else 'Install it: python -m pip install'} {package}"
