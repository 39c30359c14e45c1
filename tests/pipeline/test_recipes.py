"""The recipes of the miniature, each run to its end with tiny sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.sources import ROOT
from tests.workspace import dvc, run

RECIPES = (
    "continue",
    "curriculum",
    "distill",
    "iterated_dpo",
    "offline_online",
    "process",
    "r1",
    "r1_zero",
    "rlhf",
    "scalerl",
)
SIZES = {
    "n_corpus": 600, "n_corpus_heldout": 40, "n_sft": 250, "n_sft_heldout": 20, "n_rl": 60, "n_heldout": 30,
    "n_test": 20, "steps": 30, "rounds": 2, "prompts": 20, "heldout_prompts": 20, "samples": 3, "group_size": 3,
    "epochs": 4.0,
}  # fmt: skip
"""The most of each size."""
DROPPED = {"min_score", "pass_rate"}
"""Of an untrained model no sample is right."""


def shrunk(settings: Any) -> Any:
    """The settings with sizes of at most SIZES; a round has 4 prompts."""
    if not isinstance(settings, dict):
        return settings
    small = {key: shrunk(value) for key, value in settings.items() if key not in DROPPED}
    for key, most in SIZES.items():
        if isinstance(small.get(key), int | float):
            small[key] = type(most)(min(small[key], 4 if key == "prompts" and "group_size" in settings else most))
    if "group_size" in settings:
        small["minibatches"] = 1
    if "tables" in settings and not {"format", "model"} & set(small.get("reward", {"format"})):
        del small["reward"]  # the usual one has the form, which an untrained model sometimes has
    return small


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_to_its_results(recipe: str, own_workspace: Path) -> None:
    settings = yaml.safe_load((ROOT / f"recipes/{recipe}.yaml").read_text(encoding="utf-8"))
    (own_workspace / "params.yaml").write_text(yaml.safe_dump(shrunk(settings)), encoding="utf-8")
    checked = run(own_workspace, "python", "-m", "posttrain", "check")
    assert checked.returncode == 0, checked.stdout
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    evaluate = settings["evaluate"]
    for name in [*evaluate["policies"], *evaluate.get("runs", {})]:
        figures = json.loads((own_workspace / f"results/{name}/metrics.json").read_text(encoding="utf-8"))
        assert figures, name
    assert run(own_workspace, "python", "-m", "posttrain", "show", "results").returncode == 0
