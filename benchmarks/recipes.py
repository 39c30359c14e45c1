"""The recipes of the miniature, run as they are: the score of each policy, over three seeds.

python -m benchmarks.recipes [NAME ...]   run what benchmarks/results/recipes.json has not of them (by default of all)
python -m benchmarks.recipes --table      only write docs/reports/recipes.md and its picture

A recipe whose text has changed is run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.machine import machine
from docs.make.recipes import draw, page
from posttrain.files import write_json, write_text
from tests.pipeline.rule_critic import RuleCritic
from tests.workspace import ROOT, dvc, environment, make_workspace

RESULTS: Final = ROOT / "benchmarks/results/recipes.json"
PAGE, FIGURE = ROOT / "docs/reports/recipes.md", ROOT / "docs/reports/recipes.svg"
RECIPES: Final[Mapping[str, Sequence[int]]] = {
    **dict.fromkeys(("r1_zero", "r1", "distill", "process", "iterated_dpo", "offline_online"), (0, 1, 2)),
    **dict.fromkeys(("constitutional", "continue"), (0, 1, 2)),
    **dict.fromkeys(("rlhf", "curriculum", "scalerl"), (0,)),
    **dict.fromkeys(("calculator", "guess"), (1, 2, 3)),
}
"""Recipe -> the seeds of the whole pipeline; those with one have three runs of each setting, from one SFT model."""

Metrics = dict[str, float]
Results = dict[str, dict[str, Any]]


def text_of(name: str, seed: int) -> str:
    """Return the recipe with this seed for all its stages, and with the lines of its `served`."""
    text = (ROOT / f"recipes/{name}.yaml").read_text(encoding="utf-8").replace("# served: ", "served: ")
    return re.sub(r"^seed: .*\n", "", text, flags=re.MULTILINE) + f"\nseed: {seed}\n"


def digest(name: str) -> str:
    """Return a digest of the settings of a recipe, so that figures of other settings are not shown."""
    settings = yaml.safe_load(text_of(name, 0))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def measure(name: str, seed: int, folder: Path, cache: Path | None = None) -> dict[str, Metrics]:
    """Run the recipe in a new workspace below `folder`; evaluation -> metrics."""
    params = folder / f"{name}-{seed}.yaml"
    params.write_text(text_of(name, seed), encoding="utf-8")
    workspace = make_workspace(folder / f"{name}-{seed}", params, cache=cache)
    with served(name, workspace):
        done = dvc(workspace, "repro")
    if done.returncode:
        raise RuntimeError(f"dvc repro failed in {workspace}: {done.stdout[-3000:]}")
    return metrics_of(workspace)


@contextmanager
def served(name: str, workspace: Path) -> Iterator[None]:
    """Serve the model that a recipe asks: the critic of `constitutional`, the teacher of `distill`."""
    if name == "constitutional":
        key = "the-key-of-the-critic"
        with RuleCritic(key=key) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            os.environ.update(CONSTITUTION_URL=server.url, CONSTITUTION_KEY=key)
            yield
            server.shutdown()
    elif name == "distill":
        os.environ["POSTTRAIN_SERVE_KEY"] = "the-key-of-the-teacher"
        dvc(workspace, "repro", "online@teacher")
        command = [sys.executable, "-m", "posttrain", "serve", "online/teacher", "--port", "8741"]
        with subprocess.Popen(command, cwd=workspace, env=environment()) as process:
            try:
                yield
            finally:
                process.terminate()
    else:
        yield


def metrics_of(workspace: Path) -> dict[str, Metrics]:
    """Return what each evaluation of a workspace measured, in the order of its params.yaml."""
    settings = yaml.safe_load((workspace / "params.yaml").read_text(encoding="utf-8"))["evaluate"]
    names = [*settings["policies"], *settings.get("runs", {})]
    return {name: json.loads((workspace / f"results/{name}/metrics.json").read_text("utf-8")) for name in names}


def kept() -> Results:
    """Return the results of the recipes as they are today."""
    found: Results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return {name: found[name] for name in RECIPES if found.get(name, {}).get("recipe") == digest(name)}


def keep(name: str, seed: int, metrics: dict[str, Metrics]) -> None:
    """Add the metrics of a seed to the file of results."""
    results = kept()
    seeds = results.get(name, {"seeds": {}})["seeds"] | {str(seed): metrics}
    results[name] = {"recipe": digest(name), "seeds": dict(sorted(seeds.items()))}
    write_json(RESULTS, {name: results[name] for name in RECIPES if name in results})


def scores(seeds: Mapping[str, Mapping[str, Metrics]]) -> dict[str, list[Metrics]]:
    """Return policy -> the metrics of each seed; `ppo_1` is the first seed of `ppo`, where one base is shared."""
    found: dict[str, list[Metrics]] = {}
    for policies in seeds.values():
        for policy, metrics in policies.items():
            label = re.sub(r"_[123]$", "", policy) if len(seeds) == 1 else policy
            found.setdefault(label, []).append(metrics)
    return found


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(RECIPES):
        parser.error(f"there is no recipe {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        for name in () if arguments.table else arguments.names or RECIPES:
            for seed in RECIPES[name]:
                if str(seed) not in kept().get(name, {"seeds": {}})["seeds"]:
                    keep(name, seed, measure(name, seed, Path(folder), Path(folder) / "cache"))
                    print(f"{name}, seed {seed}", flush=True)
    shown = {name: scores(result["seeds"]) for name, result in kept().items()}
    write_text(PAGE, page(shown, machine()))
    write_text(FIGURE, draw(shown))


if __name__ == "__main__":
    main()
