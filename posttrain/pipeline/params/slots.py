"""Input slots: parameters of a run that refer to a model, a table or rollouts, its dependencies in dvc.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from posttrain.errors import ParamsError
from posttrain.files import is_outside
from posttrain.pipeline.workspace import PARAMS_FILE, model_path, table_path
from posttrain.settings.plain import NONE

PART = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
MODEL = rf"({PART}(/{PART})*)"


def model_slot(description: str, *, optional: bool = False, scores: bool | None = False, sets: bool = False) -> Any:
    """Return a slot for a model, a folder under models/. `scores`: it must be a reward model; None: it may be.

    `sets`: a set of language models is also allowed. A set of reward models always is.
    """
    shown = f"{description}: a folder under models/, e.g. sft/main" + (f", or {NONE}" if optional else "")
    extra: Any = {"slot": "model", "optional": optional, "scores": scores, "sets": sets}
    return Field(pattern=f"^{MODEL}$", description=shown, json_schema_extra=extra)


def table_slot(*kinds: str, description: str, optional: bool = False) -> Any:
    """Return a slot for a table of one of these kinds: NAME/KIND stands for data/NAME/KIND.parquet."""
    pattern = rf"{PART}/({'|'.join(kinds)})" + (f"|{NONE}" if optional else "")
    shown = f"{description}: e.g. mine/{kinds[0]} for data/mine/{kinds[0]}.parquet" + (
        f", or {NONE}" if optional else ""
    )
    extra: Any = {"slot": "table", "kinds": list(kinds), "optional": optional}
    return Field(pattern=f"^({pattern})$", description=shown, json_schema_extra=extra)


def rollouts_slot(description: str) -> Any:
    """Return a slot for the rollouts of a run: online/NAME stands for rollouts/online/NAME."""
    shown = f"{description}: e.g. online/grpo for rollouts/online/grpo"
    extra: Any = {"slot": "rollouts", "optional": False}
    return Field(pattern=f"^(online|distill|external)/{PART}$", description=shown, json_schema_extra=extra)


def slots(params: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return the slots of a settings class: field -> accepted input."""
    schemas = {name: field.json_schema_extra for name, field in params.model_fields.items()}
    return {name: extra for name, extra in schemas.items() if isinstance(extra, dict) and "slot" in extra}


def model_of(name: str, where: str) -> Path | None:
    """Return the folder of a slot's model, with links of folders resolved; None if the slot is not used."""
    if name == NONE:
        return None
    path = model_path(name)
    if is_outside(path, "models"):
        what = f"{where} = '{name}' is outside models/"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Use a folder under models/, e.g. sft/main")
    return path


def needed_model(name: str, where: str) -> Path:
    """Return the folder of a required model."""
    path = model_of(name, where)
    if path is None:
        raise ParamsError(what=f"{where} = {NONE}", where=PARAMS_FILE, fix="Name a model, e.g. sft/main")
    return path


def table_of(name: str) -> Path | None:
    """Return the file of a slot's table; None if the slot is not used."""
    return None if name == NONE else table_path(name)
