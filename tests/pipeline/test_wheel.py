"""The wheel in an environment of its own, in folders outside the checkout: `make test-wheel`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from posttrain.pipeline.commands.init.project import RECIPES
from tests.workspace import ROOT, Finished, environment, make_workspace, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


OWN = ("stages", "flows", "tasks")
"""Packages that a user may have. PYTHONPATH names their folder, so that an import of ours would find them first."""


def inside(python: Path, folder: Path, *words: str) -> Finished:
    """Run a module of the environment; its own folder comes first in PATH, where dvc.yaml's commands are looked up."""
    env = {**environment(), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    done = subprocess.run([python, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return Finished(done.args, done.returncode, done.stdout + done.stderr)


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = make_workspace(folder / "source")
    done = run(source, *PIP, "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "built"))
    assert done.returncode == 0, done.stdout
    (built,) = (folder / "built").glob("posttrain-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The Python of a fresh environment with our wheel; what it depends on comes from the running environment."""
    folder = wheel.parents[1]
    venv.create(folder / "env")
    fresh = folder / "env/bin/python"
    done = run(folder, *PIP, "--python", str(fresh), "install", "--no-deps", "--no-index", str(wheel))
    assert done.returncode == 0, done.stdout
    paths = json.loads(run(folder, str(fresh), "-c", PATHS).stdout)
    # Our own editable install is not among them: its .pth file would count only in a site folder.
    Path(paths, "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return fresh


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (facts,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == {"posttrain", facts}
    moved = {"stages": "stages", "flows": "flows", "tasks": "toy_tasks"}
    files = {file for folder in moved for file in (ROOT / folder).rglob("*.py")}
    inside = {f"posttrain/pipeline/{moved[one.relative_to(ROOT).parts[0]]}/{_below(one)}" for one in files}
    assert inside | {"posttrain/py.typed"} <= set(names), "all of the package is in it"


def _below(file: Path) -> str:
    return Path(*file.relative_to(ROOT).parts[1:]).as_posix()


SCRIPT = """
from collections.abc import Sequence

import posttrain
from posttrain.rewards import Rollout


def short(rollouts: Sequence[Rollout]) -> list[float]:
    return [float(len(rollout.text) < 20) for rollout in rollouts]


def main() -> None:
    model, tokenizer = posttrain.load_model("my/model")
    turns = [{"role": "user", "content": "Say 1"}, {"role": "assistant", "content": "1"}]
    losses = posttrain.train_model(model, tokenizer, [{"messages": turns}], "sft", epochs=2, optimizer={"lr": 1e-3})
    prompts = [{"prompt": "Say 1", "answer": "1"}, {"prompt": "Say 2", "answer": "2"}]
    settings = {"rollout": {"rounds": 2, "prompts": 2, "group_size": 2}}
    history = posttrain.train_online(model, tokenizer, prompts, short, settings=settings, output="out")
    found = posttrain.evaluate_model(model, tokenizer, prompts, short, samples=2)
    texts: list[str] = posttrain.sample(model, tokenizer, ["Say 1", "Say 2"], max_tokens=8).texts
    print(losses[-1]["loss"] + history[-1]["reward"] + found.metrics["score"], found.rollouts[0].text, texts)
    wrong: list[int] = texts  # type: ignore[assignment]  # an error, if mypy knows the types of posttrain
    print(wrong)
"""


def test_mypy_passes_on_a_script_of_a_user(python: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    words = ("--strict", "--python-executable", str(python), "--cache-dir", str(tmp_path / "cache"), "script.py")
    done = run(tmp_path, sys.executable, "-m", "mypy", *words)
    assert done.returncode == 0, done.stdout
    (tmp_path / "script.py").write_text(SCRIPT.replace("losses[-1]", "losses"), encoding="utf-8")
    done = run(tmp_path, sys.executable, "-m", "mypy", *words)
    assert done.returncode == 1 and "list[dict[str, float]]" in done.stdout, done.stdout


PATHS = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_project_of_the_wheel_runs_to_its_results(recipe: str, python: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(python), "-c", "import posttrain; print(posttrain.__file__)")
    package = Path(done.stdout.strip()).parent
    assert package.is_relative_to(python.parents[1]), done.stdout
    assert (package / "py.typed").is_file() and (package / "__init__.pyi").is_file()
    done = inside(python, tmp_path, "posttrain", "init", "project", "--recipe", recipe)
    assert done.returncode == 0, done.stdout
    project = tmp_path / "project"
    for name in OWN:
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    for words in (("posttrain", "check"), ("dvc", "repro")):
        done = inside(python, project, *words)
        assert done.returncode == 0, done.stdout
    done = inside(python, project, "posttrain", "show", "results", "--json")
    rows = json.loads(done.stdout)
    assert len(rows) == 2 and all(0 <= row["score"] <= 1 for row in rows), rows
    assert (project / "report/report.html").stat().st_size > 50_000
    done = inside(python, project, "posttrain", "flow")
    assert done.returncode == 0 and "Cached" in done.stdout, done.stdout
    assert "up to date" in inside(python, project, "dvc", "status").stdout
    assert str(ROOT) not in "".join(file.read_text() for file in (project / "code").rglob("*.json"))
