"""reward_sets: one run of `reward.sets`, two models side by side: reward models of one run, or teachers."""

from __future__ import annotations

import shutil

from posttrain.errors import ParamsError
from posttrain.files import atomic_path
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.reward import SetRun
from posttrain.pipeline.workspace import PARAMS_FILE, model_path
from posttrain.rewards.learned import models_of


def main(run: str) -> None:
    """Writes models/reward/RUN/NAME for each model."""
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


if __name__ == "__main__":
    run_named_stage(main)
