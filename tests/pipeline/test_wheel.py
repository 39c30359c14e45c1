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
    inside = {"posttrain/pipeline/stages/sft.py", "posttrain/pipeline/flows/run.py", "posttrain/py.typed"}
    assert inside <= set(names), "and all of the package is in it"


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
