"""The sections of params.yaml and the models that type them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from posttrain.algorithms.policy import POLICY_ROWS
from posttrain.algorithms.preference import PREFERENCE_ROWS
from posttrain.errors import ParamsError
from posttrain.evaluate.policy import EvaluateParams
from posttrain.online.run import OnlineRun
from posttrain.params import PARAMS_FILE, check, did_you_mean, read
from posttrain.report.build import ReportParams
from posttrain.rollout.pairs import PairsParams
from posttrain.tables.sources import PrepareParams
from posttrain.train.named import load_run
from posttrain.train.preferences import PreferenceRun, RewardParams
from posttrain.train.supervised import BaseParams, SftParams

SECTIONS: dict[str, type[BaseModel]] = {
    "prepare": PrepareParams,
    "base": BaseParams,
    "sft": SftParams,
    "pairs": PairsParams,
    "reward": RewardParams,
    "preference": PreferenceRun,
    "online": OnlineRun,
    "evaluate": EvaluateParams,
    "report": ReportParams,
}
RUNS: Mapping[str, Mapping[str, Any]] = {"preference": PREFERENCE_ROWS, "online": POLICY_ROWS}
"""Sections that hold named runs, with the rows that a run may name."""


def check_params() -> int:
    """Check every section of params.yaml; the number of sections and runs that were checked."""
    data = read()
    for name in data:
        if name not in SECTIONS:
            mend = did_you_mean(str(name), list(SECTIONS))
            raise ParamsError(what=f"unknown section '{name}'", where=PARAMS_FILE, mend=mend)
    checked = 0
    for name, model in SECTIONS.items():
        if name in RUNS:
            runs = (data.get(name) or {}).get("runs") or {}
            for run in runs:
                load_run(model, f"{name}.runs.{run}", RUNS[name])  # type: ignore[type-var]
            checked += len(runs)
        elif name in data:
            check(model, data[name] or {}, where=name)
            checked += 1
    return checked


def describe_params(section: str | None) -> str:
    """Every parameter of one section or of all, with type, default and meaning."""
    if section is not None and section not in SECTIONS:
        raise ParamsError(
            what=f"there is no section '{section}'", where=PARAMS_FILE, mend=did_you_mean(section, list(SECTIONS))
        )
    names = [section] if section else list(SECTIONS)
    lines: list[str] = []
    for name in names:
        head = f"{name}.runs.NAME" if name in RUNS else name
        lines += [head, *(f"  {line}" for line in _lines(SECTIONS[name], "")), ""]
    return "\n".join(lines).rstrip()


def _lines(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None:
            yield from _lines(inner, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else f"= {default!r}"
        yield f"{prefix}{name}: {_type(field.annotation)} {shown}  {field.description or ''}".rstrip()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _type(annotation: Any) -> str:
    values = get_args(annotation)
    if values and all(isinstance(value, str) for value in values):
        return "|".join(values)
    return (
        annotation.__name__ if isinstance(annotation, type) and not values else str(annotation).replace("typing.", "")
    )
