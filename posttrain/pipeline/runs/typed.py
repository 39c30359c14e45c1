"""Find the settings class of each run in params.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from posttrain.pipeline.outside.evaluators import GROUP as EVALUATED
from posttrain.pipeline.outside.evaluators import evaluator_of
from posttrain.pipeline.params.named_runs import typed_run
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.runs.task_tables import typed_task
from posttrain.settings.params import check
from posttrain.train.run_config import Algorithm

_TYPES = {stage.group: stage.settings() for stage in STAGES if stage.runs}
MODELS: Mapping[str, type[BaseModel]] = {group: model for group, model in _TYPES.items() if isinstance(model, type)}
"""Groups whose runs have one settings class."""
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    group: table for group, table in _TYPES.items() if group not in MODELS and group != EVALUATED
}
"""Groups whose runs name an algorithm, which decides the settings class."""


def load_settings(group: str, name: str) -> Any:
    """Return the typed settings of a run."""
    where = f"{group}.{name}"
    return settings_of(group, at(read(), where), where)


def settings_of(group: str, run: Any, where: str) -> Any:
    """Return the typed settings for a run's mapping in params.yaml. `where`: the run's section."""
    if group == "data.tasks":
        return typed_task(where.rpartition(".")[2], run)[2]
    if group in ALGORITHMS:
        return typed_run(run, where, ALGORITHMS[group])
    model = evaluator_of(run, where).runs if group == EVALUATED else MODELS[group]
    return check(model, {} if run is None else run, where=where)
