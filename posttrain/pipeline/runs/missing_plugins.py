"""Plugins that code/ names and whose package is not installed: code/ keeps them while params.yaml needs them."""

from __future__ import annotations

import sys

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.lock.code_manifest import code_path
from posttrain.pipeline.lock.plugin_check import install, missing_in, shown
from posttrain.pipeline.params.params_file import load, read
from posttrain.pipeline.params.stage_table import STAGES, group_of
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.typed import load_settings
from posttrain.pipeline.workspace import PARAMS_FILE


def refuse_missing_plugins() -> None:
    """Raise if a run names a plugin of a package that is not installed; say which packages no run names any more.

    A run names one if its settings cannot be read and code/ has the package.
    """
    dropped: dict[tuple[str, str], str] = {}
    for stage in STAGES:
        for run in group_of(read(), stage.group):
            path = code_path(f"{stage.name}@{run}")
            for name, made in missing_in(path).items():
                if why := _unreadable(stage.group, run, shared=stage.shares_settings):
                    missing = f"the package {shown(name, made)}, whose plugin it named, is not installed"
                    what = f"{stage.group}.{run} cannot be read, and {missing}: {why.what}"
                    fix = f"{install(name, made)}, or remove its names from {PARAMS_FILE}"
                    raise PipelineError(what=what, where=str(path), fix=fix)
                dropped.setdefault((name, made), str(path))
    for (name, made), path in dropped.items():
        print(f"note: {path} no longer names the package {shown(name, made)}: no setting needs it", file=sys.stderr)


def _unreadable(group: str, run: str, *, shared: bool) -> ParamsError | None:
    """Return why the settings of a run cannot be read."""
    try:
        if shared:
            load(EvaluateParams, "evaluate.settings")
        else:
            load_settings(group, run)
    except ParamsError as error:
        return error
    return None
