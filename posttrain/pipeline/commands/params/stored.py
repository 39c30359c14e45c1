"""What `posttrain params` prints about settings, read from a file: importing the settings classes takes seconds.

settings.json in this folder describes posttrain's own settings; `python -m docs.make.settings` renews it. If other
plugins are installed, the description is made at its first use, and stored in the project by the plugins' versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypedDict

from posttrain.errors import ParamsError
from posttrain.pipeline.lock.plugin_code import plugin_version
from posttrain.pipeline.params.params_file import GROUPS
from posttrain.pipeline.params.parsed import parsed_once
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean
from posttrain.settings.plugins import every

FILE: Final = Path(__file__).with_name("settings.json")
REWARD_OPTIONS: Final = "options of the reward"
REWARDED: Final = ("data", "online", "distill", "evaluate")
"""Sections whose runs have rewards."""


class Stored(TypedDict):
    """The description of all settings."""

    plugins: list[str]
    """The plugins that were installed when the description was made."""
    sections: dict[str, str]
    """Title, which begins with a section of params.yaml -> its settings, a line each."""
    overview: str
    """All algorithms, a line each."""
    algorithms: dict[str, str]
    """Algorithm -> its settings in full."""


def stored() -> Stored:
    """Return the description of all settings. Import their classes only if it is not stored."""
    text = FILE.read_text(encoding="utf-8")
    ours: Stored = json.loads(text)
    installed = plugins()
    if ours["plugins"] == installed:
        return ours
    made: Stored = parsed_once("\n".join([text, *installed]), "settings", _make)
    return made


def plugins() -> list[str]:
    """Return the installed plugins. The version of another distribution's plugin includes a digest of its files."""
    names = [(one, f"{one.group} {one.name} {one.value}") for one in every() if not one.is_gone]
    return [name if one.is_ours else f"{name} {one.distribution} {plugin_version(one)}" for one, name in names]


def section_text(section: str | None) -> str:
    """Return every parameter of one section, or of all, with type, default and description."""
    if section is not None and section not in GROUPS:
        raise ParamsError(what=f"no section '{section}'", where=PARAMS_FILE, fix=did_you_mean(section, list(GROUPS)))
    return "\n\n".join(_of_section(stored()["sections"].items(), section))


def algorithm_text(name: str | None) -> str:
    """Return all algorithms, a line each, or one algorithm in full."""
    known = stored()
    if name is None:
        return known["overview"]
    if name not in known["algorithms"]:
        fix = did_you_mean(name, sorted(known["algorithms"]))
        raise ParamsError(what=f"no algorithm '{name}'", where="algorithms", fix=fix)
    return known["algorithms"][name]


def names() -> list[str]:
    """Return what `posttrain params` describes: sections and algorithms."""
    return [*GROUPS, *stored()["algorithms"]]


def _of_section(sections: Iterable[tuple[str, str]], section: str | None) -> list[str]:
    return [
        text
        for title, text in sections
        if section in (None, title.partition(".")[0]) or (title.startswith(REWARD_OPTIONS) and section in REWARDED)
    ]


def _make() -> Stored:
    from posttrain.pipeline.commands.params.describe import description

    return description()
