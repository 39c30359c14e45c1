"""The stage `code`. It keeps records of missing plugin packages as long as params.yaml needs them."""

from __future__ import annotations

import sys

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.lock.check_inputs import check_input_names
from posttrain.pipeline.lock.code_manifest import code_path, write_code
from posttrain.pipeline.lock.plugin_check import install, lacks_plugins, missing_in, shown
from posttrain.pipeline.params.stage_table import STAGES, group_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE


def write_code_of_runs() -> None:
    """Write code/ for every run in params.yaml. Fail if a run needs a plugin whose package is not installed."""
    check_input_names()
    if lacks_plugins():
        _refuse_missing_plugins()
    write_code()


def _refuse_missing_plugins() -> None:
    """Raise if a run uses a plugin of a package that is not installed. Print which packages no run uses any more.

    A run uses such a plugin if its settings cannot be read and code/ has the package.
    """
    settings = read_yaml(PARAMS_FILE)
    dropped: dict[tuple[str, str], str] = {}
    for stage in STAGES:
        for run in group_of(settings, stage.group):
            path = code_path(f"{stage.name}@{run}")
            for name, made in missing_in(path).items():
                if why := _unreadable(stage.group, run, shared=stage.shares_settings):
                    missing = f"the package {shown(name, made)}, whose plugin it used, is not installed"
                    what = f"{stage.group}.{run} cannot be read, because {missing}: {why.what}"
                    fix = f"{install(name, made)}, or remove the plugin from {PARAMS_FILE}"
                    raise PipelineError(what=what, where=str(path), fix=fix)
                dropped.setdefault((name, made), str(path))
    for (name, made), file in dropped.items():
        print(f"note: {file} no longer names the package {shown(name, made)}: no setting needs it", file=sys.stderr)


def _unreadable(group: str, run: str, *, shared: bool) -> ParamsError | None:
    """Return why the settings of a run cannot be read."""
    from posttrain.pipeline.params.params_file import load  # what types runs is slow to import
    from posttrain.pipeline.runs.evaluation import EvaluateParams
    from posttrain.pipeline.runs.typed import load_settings

    try:
        if shared:
            load(EvaluateParams, "evaluate.settings")
        else:
            load_settings(group, run)
    except ParamsError as error:
        return error
    return None
