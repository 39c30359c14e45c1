"""A committed project with one run, whose stage writes results without training: for sweeps and deployments."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.pipeline.flows.project import PYTHON, Project, clean_env

BETA = "online.runs.a.kl.beta"
PARAMS = """
data: {tasks: {two_step: {task: two_step}}}
base: {scratch: {tiny: {data: two_step/corpus}}}
online:
  runs:
    a:  # a comment
      {algorithm: grpo, start: base/tiny, data: two_step/prompts, corpus: none, reward_model: none, kl: {beta: 0.02}}
evaluate:
  settings: {data: two_step/prompts, reference: base/tiny, reward_model: none, samples: 2}
  policies: {a: online/a}
"""
OWN = PARAMS.replace("kl: {beta: 0.02}}", 'kl: {beta: 0.02}, reward: {correct: 1.0, "mine:f": 0.1}}')
"""With an import path between braces, whose quotes `dvc exp run -S` drops."""
MINE = "def f(rollouts):\n    return [0.0 for _ in rollouts]\n"
# Beta 0.02 gets nine of ten prompts right and 0.5 three; with the file SLOW seed 2 takes for ever.
STEP = """
import os, pathlib, time
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.workspace import checkpoint_path
from tests.pipeline.compare.test_comparison import put_run
checkpoint_path("online@a").mkdir(parents=True, exist_ok=True)
run = read()["online"]["runs"]["a"]
once = pathlib.Path(os.environ.get("POSTTRAIN_ROOT", "."), "once")
if once.exists():
    once.unlink()
    raise SystemExit("error: process 1 (sft) is using a run of sft@a with the same inputs. Wait until it has ended, or")
if pathlib.Path("custom/fails").exists():
    raise SystemExit("error: the reward cannot be read")
if pathlib.Path(os.environ["SLOW"]).exists() and run["seed"] == 2:
    time.sleep(300)
name = f"seed{run.get('seed', 0)}"
put_run(pathlib.Path(), "a", 0.9 if run["kl"]["beta"] < 0.1 else 0.3, draw=name)
"""
DVC_YAML = f"""
stages:
  online:
    cmd: {PYTHON} step.py
    params: [online.runs.a]
    deps: [step.py]
    outs: [results/a/rollouts.parquet, plots/online/a.csv]
"""


def make_small(tmp_path: Path, server_env: dict[str, str]) -> Project:
    """Return a committed project with one run."""
    root = tmp_path / "small"
    (root / "custom").mkdir(parents=True)
    for name, text in {
        "params.yaml": OWN,
        "custom/mine.py": MINE,
        "step.py": STEP,
        "dvc.yaml": DVC_YAML,
        ".gitignore": "/results/\n/plots/\n/.prefect/\n/.sweeps/\n/checkpoints/\n__pycache__/\n",
    }.items():
        (root / name).write_text(text)
    env = {
        **clean_env(),
        **server_env,
        "PREFECT_HOME": str(root / ".prefect"),
        "SLOW": str(tmp_path / "slow"),
    }
    project = Project(root, env)
    for words in (["init", "-q"], ["config", "user.email", "a@example.com"], ["config", "user.name", "A"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    project.dvc("init", "-q")
    for key in ("analytics", "autostage", "check_update"):
        project.dvc("config", f"core.{key}", "false")
    commit(root)
    return project


def commit(root: Path) -> None:
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", "commit", "-qm", "begin"], cwd=root, check=True)
