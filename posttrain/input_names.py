"""Checks that runs of params.yaml make the inputs that runs name: DVC alone would use the outputs of removed runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.code import read_params
from posttrain.errors import ParamsError
from posttrain.stage_table import STAGES, Settings, group_of
from posttrain.workspace import PARAMS_FILE

GRAPH: Final = Path("dvc.yaml")
GROUP: Final = re.compile(r"\$\{([\w.]+)\}")
SLOT: Final = re.compile(r"(models|data|rollouts)/\$\{([\w.]+)\}(\.parquet)?")
"""A dependency of a stage in dvc.yaml that a run names."""
UNUSED: Final = "none"


def check_input_names(stage: str | None = None) -> None:
    """Raise if a run, or this one alone, names a model or a table that no run of params.yaml makes."""
    settings = read_params()
    made = {
        folder: [one.output(name) for one in STAGES if one.makes == makes for name in group_of(settings, one.group)]
        for folder, makes in (("models", "model"), ("data", "tables"), ("rollouts", "model"))
    }
    for folder, where, named in _named(settings, stage):
        name, kind = named.rsplit("/", 1) if folder == "data" and "/" in named else (named, "")
        if named != UNUSED and name not in made[folder]:
            from posttrain.params import did_you_mean  # pydantic is slow to import

            removed = Path(folder, name).exists()
            reason = "the run that made it was removed or renamed" if removed else f"no run makes it ({folder}/)"
            fix = (
                did_you_mean(named, [f"{one}/{kind}".rstrip("/") for one in made[folder]]) or "Add a run that makes it"
            )
            raise ParamsError(what=f"{where} = '{named}': {reason}", where=PARAMS_FILE, fix=fix)


def _named(settings: Settings, stage: str | None) -> Iterator[tuple[str, str, str]]:
    """Folder, parameter and name of each model and table that a run names, by the dependencies in dvc.yaml."""
    from ruamel.yaml import YAML

    stanzas = YAML(typ="safe").load(GRAPH.read_text(encoding="utf-8"))["stages"] if GRAPH.is_file() else {}
    for kind, stanza in stanzas.items():
        if (found := GROUP.fullmatch(str(stanza.get("foreach")))) is None:
            continue
        group = found[1]
        for name, run in group_of(settings, group).items():
            if stage not in (None, f"{kind}@{name}"):
                continue
            for slot in filter(None, (SLOT.fullmatch(str(dep)) for dep in stanza["do"]["deps"])):
                first, _, rest = slot[2].partition(".")
                where = ".".join([f"{group}.{name}", *([rest] if rest else [])]) if first == "item" else slot[2]
                value = _at(run, rest) if first == "item" else _at(settings, slot[2])
                if isinstance(value, str):
                    yield slot[1], where, value


def _at(settings: Any, key: str) -> Any:
    """The value under a dotted key; the settings themselves under none."""
    for part in filter(None, key.split(".")):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings
