"""The sections of params.yaml and the models that type them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from posttrain.errors import ParamsError
from posttrain.evaluate.policy import EvaluateParams
from posttrain.online.runs import DISTILL, ONLINE
from posttrain.params import PARAMS_FILE, check, did_you_mean, read
from posttrain.report.build import ReportParams
from posttrain.rollout.pairs import PairsParams
from posttrain.tables.sources import PrepareParams
from posttrain.train.named import Algorithm, load_run
from posttrain.train.preferences import PREFERENCE, RewardParams
from posttrain.train.supervised import BaseParams, SftParams

SECTIONS: dict[str, type[BaseModel]] = {
    "prepare": PrepareParams,
    "base": BaseParams,
    "sft": SftParams,
    "pairs": PairsParams,
    "reward": RewardParams,
    "evaluate": EvaluateParams,
    "report": ReportParams,
}
RUNS: Mapping[str, Mapping[str, Algorithm]] = {"preference": PREFERENCE, "online": ONLINE, "distill": DISTILL}
"""Sections that hold named runs, with the algorithms that a run may name."""


def check_params() -> int:
    """Check every section of params.yaml; the number of sections and runs that were checked."""
    data = read()
    given = [name for name in SECTIONS if name in data]
    for name in given:
        check(SECTIONS[name], data[name] or {}, where=name)
    runs = [f"{name}.runs.{run}" for name in RUNS for run in (data.get(name) or {}).get("runs") or {}]
    for run in runs:
        load_run(run, RUNS[run.partition(".")[0]])
    return len(given) + len(runs)


def describe_params(section: str | None) -> str:
    """Every parameter of one section or of all, with type, default and meaning."""
    known = [*SECTIONS, *RUNS]
    if section is not None and section not in known:
        raise ParamsError(what=f"there is no section '{section}'", where=PARAMS_FILE, mend=did_you_mean(section, known))
    blocks = [[name, *_lines(model, "  ")] for name, model in SECTIONS.items() if section in (None, name)]
    for name, algorithms in RUNS.items():
        if section not in (None, name):
            continue
        models = {algorithm.model: [] for algorithm in algorithms.values()}  # type: dict[type[BaseModel], list[str]]
        for algorithm, of in algorithms.items():
            models[of.model].append(algorithm)
        for model, named in models.items():
            blocks.append([f"{name}.runs.NAME with algorithm {', '.join(named)}", *_lines(model, "  ")])
    return "\n\n".join("\n".join(lines) for lines in blocks)


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
