"""The settings of a run in params.yaml: its algorithm's settings, some of them replaced by the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.errors import ParamsError
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.listing import row_modules
from posttrain.settings.params import check, did_you_mean
from posttrain.train.run_config import Algorithm

SECTIONS = {
    "algorithms.policy": "online",
    "online.sampled": "online",
    "algorithms.preference": "preference",
    "algorithms.distill": "distill",
}
"""Folder of presets -> the section of params.yaml whose runs use them."""


def load_run(section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the algorithm's settings, updated with the run's settings, typed and checked."""
    return typed_run(at(read(), section), section, algorithms)


def typed_run(run: Any, section: str, algorithms: Mapping[str, Algorithm]) -> Any:
    """Return the settings for a run's mapping in params.yaml."""
    if not isinstance(run, dict) or not isinstance(run.get("algorithm"), str):
        fix = f"Set algorithm to one of: {', '.join(algorithms)}"
        raise ParamsError(what=f"{section} has no algorithm", where=PARAMS_FILE, fix=fix)
    if run["algorithm"] not in algorithms:
        fix = _hint(run["algorithm"], algorithms)
        what = f"{section}.algorithm = '{run['algorithm'][:80]}' is unknown"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    algorithm = algorithms[run["algorithm"]]
    return check(algorithm.model, algorithm.row.merged(run), where=section)


def _hint(name: str, algorithms: Mapping[str, Algorithm]) -> str:
    """Return the section that has the algorithm, or the nearest name."""
    for folder, section in SECTIONS.items():
        if name in row_modules(f"posttrain.{folder}", "ROWS"):
            also = f", or here '{near}'" if (near := f"online_{name}") in algorithms else ""
            return f"It is an algorithm of {section}.runs{also}"
    return did_you_mean(name, list(algorithms))
