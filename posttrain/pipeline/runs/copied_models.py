"""Runs that copy models: from a folder, from the Hub, or several into one folder."""

from __future__ import annotations

import shutil

from posttrain.errors import ParamsError
from posttrain.files import atomic_path, write_json
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.runs.base import FolderRun, HubRun
from posttrain.pipeline.runs.reward import SetRun
from posttrain.pipeline.workspace import PARAMS_FILE, any_outside, metrics_path, model_path
from posttrain.rewards.learned import models_of


def copy_folder(run: str) -> None:
    """Check and copy a model from a folder (`base.folders`)."""
    name, section = f"base@{run}", f"base.folders.{run}"
    params = load(FolderRun, section)
    if any_outside(params.path) and not params.outside_workspace:
        where = f"{section}.path = {params.path} ({PARAMS_FILE})"
        fix = f"Copy the model into the workspace, or set {section}.outside_workspace: true"
        raise ParamsError(what="the path is outside the workspace", where=where, fix=fix)
    fetch_model(params.path, None, model_path(name), params.save_dtype, params.chat_template, params.template)
    write_json(metrics_path(name), {"source": params.path})
    print(f"base_folders@{run}: {params.path} checked and saved in {model_path(name)}")


def copy_from_hub(run: str) -> None:
    """Check and copy a model from the Hub at its commit (`base.hub`)."""
    name = f"base@{run}"
    params = load(HubRun, f"base.hub.{run}")
    fetch_model(
        params.name, params.revision, model_path(name), params.save_dtype, params.chat_template, params.template
    )
    write_json(metrics_path(name), {"source": params.name, "revision": params.revision})
    print(f"base_hub@{run}: {params.name} checked and saved in {model_path(name)}")


def collect_models(run: str) -> None:
    """Copy several models into one folder (`reward.sets`)."""
    section = f"reward.sets.{run}"
    params, folder = load(SetRun, section), model_path(f"reward/{run}")
    with atomic_path(folder) as whole:
        for slot in (params.first, params.second):
            for name, model in models_of(needed_model(slot, section)).items():
                if (whole / name).exists():
                    fix = "Rename the run that makes one of them"
                    raise ParamsError(what=f"{section} has two models of the name '{name}'", where=PARAMS_FILE, fix=fix)
                shutil.copytree(model, whole / name, copy_function=shutil.copyfile)
    print(f"reward_sets@{run}: {', '.join(models_of(folder))} in {folder}")
