"""Read params.yaml, check its sections, and turn a section into the typed settings of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from posttrain.errors import ParamsError
from posttrain.pipeline.params.seeds import SEED, with_seed
from posttrain.pipeline.params.stage_table import groups
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE as PARAMS_FILE  # noqa: PLC0414  had without pydantic there
from posttrain.settings.params import M, _shown, check, did_you_mean
from posttrain.settings.plain import PARAMS, UPGRADE, check_format

FORMAT = "format"
"""The key of the file's format version. Without it, the file has the current version."""
GROUPS: Final = groups()


def read(path: str | os.PathLike[str] = PARAMS_FILE) -> dict[str, Any]:
    """Return the sections of params.yaml as plain data, all known.

    The top-level `seed` is put into the runs that use it.
    """
    data = read_yaml(path)
    if _LAST and _LAST[0] == str(path) and _is_same(_LAST[1], data):
        return dict(_LAST[2])
    sections = _sections(dict(data), path)
    _LAST[:] = str(path), data, sections
    return dict(sections)


_LAST: list[Any] = []
"""The path, the parsed file and the sections of the last call: a check asks once per run."""


def _is_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether both are the same objects of one parsed file."""
    return old.keys() == new.keys() and all(old[name] is value for name, value in new.items())


def _sections(data: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    written_format = data.pop(FORMAT, PARAMS)
    check_format(written_format, PARAMS, str(path), ParamsError)
    if written_format < PARAMS:
        raise ParamsError(
            what=f"{FORMAT} = {written_format} is the format of an earlier version", where=str(path), fix=UPGRADE
        )
    _check_sections({name: section for name, section in data.items() if name != SEED}, str(path))
    return with_seed(data, str(path))


def _check_sections(data: Mapping[Any, Any], file: str) -> None:
    """Reject sections and groups that nothing reads, and empty ones that DVC cannot read."""
    for name, section in data.items():
        if name not in GROUPS:
            fix = did_you_mean(str(name), list(GROUPS))
            raise ParamsError(what=f"unknown section {_shown(name)}", where=file, fix=fix)
        if not isinstance(section, Mapping):
            fix = f"Remove it, or write {name}: {{}}"
            raise ParamsError(what=f"section '{name}' is {_kind(section)}", where=file, fix=fix)
        _check_groups(name, section, file)


def _check_groups(name: str, section: Mapping[Any, Any], file: str) -> None:
    groups = GROUPS[name]
    for group, runs in section.items():
        if group not in groups:
            hint = did_you_mean(str(group), groups)
            fix = hint if hint.startswith("Did you mean") else _place(name, _key(group))
            raise ParamsError(what=f"{name}.{_key(group)}: unknown key", where=file, fix=fix)
        if not isinstance(runs, Mapping):
            fix = f"Remove it, or write {group}: {{}}"
            raise ParamsError(what=f"{name}.{group} is {_kind(runs)}", where=file, fix=fix)


def _place(section: str, key: str) -> str:
    """Return where a key belongs that is directly under a section."""
    groups = GROUPS[section]
    if groups == ("runs",):
        return f"Settings belong to a run: {section}.runs.NAME.{key}"
    if "settings" in groups:
        return f"It belongs to {section}.settings, or to {section}.policies"
    return f"A run is {section}.GROUP.NAME; groups are {', '.join(groups)}"


def _kind(value: object) -> str:
    """Return what is in the place of a mapping."""
    return "empty" if value is None else f"{_shown(value)}, not a mapping of names to settings"


def _key(name: object) -> str:
    return name if isinstance(name, str) else _shown(name)


def at(data: Mapping[str, Any], section: str, file: str = PARAMS_FILE) -> Any:
    """Return the value at a dotted path, e.g. `online.runs.grpo`."""
    value: Any = data
    walked: list[str] = []
    for key in section.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = [str(k) for k in value] if isinstance(value, Mapping) else []
            where = ".".join(walked) or "the top level"
            raise ParamsError(
                what=f"{where} has no section '{key}'", where=file, fix=did_you_mean(key, known) or "Add the section"
            )
        value, walked = value[key], [*walked, key]
    return value


def load(model: type[M], section: str, *, path: str | os.PathLike[str] = PARAMS_FILE) -> M:
    """Return the section of params.yaml as a typed model."""
    value = at(read(path), section, str(path))
    return check(model, {} if value is None else value, where=section, file=str(path))
