"""`posttrain init`: a project that uses the installed package, what it refuses, and how it is upgraded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from posttrain.errors import PosttrainError
from posttrain.pipeline.commands import line
from posttrain.pipeline.commands.init.project import RECIPES, init, upgrade_project
from tests.workspace import ROOT, Finished, environment

LIBRARY = {"PYTHONPATH": str(ROOT)}
"""What an installation would be: the packages lie elsewhere than the project."""


def posttrain(folder: Path, *words: str, **more: str) -> Finished:
    return command(folder, sys.executable, "-m", "posttrain", *words, **more)


def command(folder: Path, *words: str, **more: str) -> Finished:
    env = environment() | LIBRARY | more
    done = subprocess.run(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return Finished(done.args, done.returncode, done.stdout + done.stderr)


def dvc(folder: Path, *words: str) -> Finished:
    return command(folder, sys.executable, "-m", "dvc", *words)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose own packages have the names of the library's, and refuse to be imported."""
    folder = tmp_path_factory.mktemp("projects") / "mine"
    done = posttrain(folder.parent, "init", "mine")
    assert done.returncode == 0, done.stdout
    for name in ("stages", "flows", "tasks"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    return folder


@pytest.mark.slow
def test_the_stages_run_in_a_project_and_read_every_example(project: Path) -> None:
    params = project / "params.yaml"
    text = params.read_text(encoding="utf-8")
    more = "      corpus: corpus.jsonl\n      feedback: feedback.jsonl\n"
    params.write_text(text.replace("      chat: demonstrations.jsonl\n", f"      chat: demonstrations.jsonl\n{more}"))
    assert posttrain(project, "check").returncode == 0
    done = dvc(project, "repro", "data_files@mine")
    assert done.returncode == 0, done.stdout
    tables = {file.stem for file in (project / "data/mine").iterdir()}
    assert tables == {"chat", "corpus", "feedback", "pairs", "prompts"}
    code = json.loads((project / "code/sft/main.json").read_bytes())
    assert {"posttrain/train/loop.py", "stages/sft.py"} <= code["files"].keys()


@pytest.mark.slow
def test_git_sees_only_what_belongs_into_it(project: Path) -> None:
    assert dvc(project, "repro", "data_files@mine").returncode == 0
    listed = command(project, "git", "status", "--porcelain", "--untracked-files=all").stdout.splitlines()
    top = {line[3:].split("/")[0] for line in listed}
    assert top == {
        *(
            "AGENTS.md",
            "prefect.yaml",
            ".dvc",
            ".dvcignore",
            ".gitignore",
            ".vscode",
            "README.md",
            "code",
            "custom",
            "data",
            "dvc.lock",
        ),
        *("dvc.yaml", "flows", "metrics", "models", "my", "params.yaml", "plots", "posttrain.lock", "results"),
        *("stages", "tasks"),
    }
    assert [line[3:] for line in listed if line[3:].startswith(("data/", ".dvc/", ".vscode/"))] == [
        *(".dvc/.gitignore", ".dvc/config", ".dvc/plots/curves.json"),
        *(".vscode/params.schema.json", ".vscode/settings.json", "data/none.parquet"),
    ]


@pytest.mark.slow
def test_dvc_reads_the_graph_of_the_checkout_with_other_commands(project: Path) -> None:
    ours, theirs = (YAML(typ="safe").load(folder / "dvc.yaml")["stages"] for folder in (ROOT, project))
    assert ours.keys() == theirs.keys()
    for name, stage in ours.items():
        mine = stage.get("do", stage)
        mine["cmd"] = mine["cmd"].replace("python -m stages.", "posttrain run ")
        if name == "code":
            mine["deps"] = ["params.yaml", "posttrain.lock", "custom"]
        assert stage == theirs[name]
    assert dvc(project, "dag").returncode == 0


@pytest.mark.slow
def test_a_flow_of_the_package_runs_beside_a_folder_of_the_same_name(project: Path) -> None:
    assert dvc(project, "repro", "data_files@mine").returncode == 0
    done = posttrain(project, "flow", "data_files@mine")
    assert done.returncode == 0 and "data_files@mine" in done.stdout and "Cached" in done.stdout, done.stdout


@pytest.mark.parametrize("word", ["check", "status"])
def test_a_command_that_looks_ahead_refuses_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("posttrain.lock").write_text(json.dumps({"version": "0.0.9", "digest": "0" * 64}))
    with pytest.raises(PosttrainError, match=r"the project uses posttrain 0\.0\.9 .*Run `posttrain init --upgrade`"):
        line.run(line.parse([word]))


@pytest.mark.slow
def test_another_package_stops_a_stage_until_it_is_taken_over(project: Path) -> None:
    lock = project / "posttrain.lock"
    assert dvc(project, "repro", "data_files@mine").returncode == 0
    old = json.loads(lock.read_bytes())
    lock.write_text(json.dumps({**old, "version": "0.0.9", "digest": "0" * 64}))
    for words in (("run", "data_files", "mine"), ("run", "code"), ("status",), ("check",)):
        done = posttrain(project, *words)
        assert done.returncode == 1
        assert re.fullmatch(
            r"error: posttrain\.lock: the project uses posttrain 0\.0\.9 \(0{12}\), but posttrain .* is installed\. "
            r"Run `posttrain init --upgrade`, or install 0\.0\.9 again\n",
            done.stdout,
        ), done.stdout
    shown = posttrain(project, "init", "--upgrade")
    assert shown.returncode == 0 and "posttrain.lock: posttrain 0.0.9" in shown.stdout
    assert json.loads(lock.read_bytes())["version"] == "0.0.9"
    params = project / "params.yaml"
    text = params.read_text(encoding="utf-8").replace("format: 2\n", "")  # without it the file has the present format
    params.write_text(text, encoding="utf-8")
    assert posttrain(project, "init", "--upgrade", "--yes").returncode == 0
    assert (json.loads(lock.read_bytes()), params.read_text(encoding="utf-8")) == (old, text)
    done = dvc(project, "repro", "data_files@mine")
    assert "Stage 'data_files@mine' didn't change, skipping" in done.stdout, done.stdout


@pytest.mark.slow
def test_upgrade_names_the_runs_that_are_stale_and_rewrites_its_own_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dvc(project, "repro", "data_files@mine").returncode == 0
    monkeypatch.chdir(project)
    graph, lock, code = Path("dvc.yaml"), Path("posttrain.lock"), Path("code/sft/main.json")
    texts = {file: file.read_text(encoding="utf-8") for file in (graph, lock, code)}
    older = f"# older\n{texts[graph]}"
    pin: dict[str, Any] = json.loads(texts[lock])
    pin["files"]["dvc.yaml"] = hashlib.sha256(older.encode()).hexdigest()
    pin["digest"] = "0" * 64
    before = json.loads(texts[code])
    before["files"]["stages/sft.py"] = "0" * 16
    code.write_text(json.dumps(before))
    added = "\nartifacts:\n  grpo:\n    path: models/online/grpo\n"  # by `posttrain promote`
    mine = f"# my own\n{older}"
    for found, kept in ((older, texts[graph]), (older + added, texts[graph] + added), (mine, mine)):
        lock.write_text(json.dumps(pin))
        graph.write_text(found)
        lines = upgrade_project("write")
        assert "  sft@main has to run again: stages/sft.py changed" in lines
        assert graph.read_text(encoding="utf-8") == kept
        told = "You have edited dvc.yaml: it is left as it is. Take these changes over by hand"
        assert (told in lines) == (kept == mine)
        assert upgrade_project("show") == []
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("recipe", RECIPES[1:])
@pytest.mark.slow
def test_every_recipe_passes_the_check(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"with the recipe {recipe} to empty" in posttrain(tmp_path, "init", "empty", "--recipe", recipe).stdout
    done = posttrain(tmp_path / "empty", "check")
    assert done.returncode == 0 and "runs are right" in done.stdout, done.stdout


def listed(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_init_refuses_without_writing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    before = listed(tmp_path)
    for name, recipe, said in (
        ("full", "rlvr", "full: the folder is not empty. Choose a new or an empty folder; nothing was written"),
        ("full/file", "rlvr", "full/file: this is a file. Choose a new folder"),
        ("full/file/deeper", "rlvr", "Not a directory. Fix it and run this again; no files were left behind"),
        ("new", "rvlr", "--recipe: no recipe 'rvlr'. Did you mean 'rlvr'?"),
    ):
        with pytest.raises(PosttrainError, match=re.escape(said)):
            init(tmp_path / name, recipe)
        assert listed(tmp_path) == before
    (tmp_path / "full/broken").write_text("[")
    before = listed(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "full/broken"))
    with pytest.raises(PosttrainError, match=r"git init .*bad config.*no files were left behind"):
        init(tmp_path / "new", "rlvr")
    assert listed(tmp_path) == before


@pytest.mark.slow
def test_init_without_git_or_dvc_is_one_line(tmp_path: Path) -> None:
    done = posttrain(tmp_path, "init", "new", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (
        1,
        "error: PATH: git was not found. Install git, e.g. apt-get install git\n",
    )
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("dvc", "posttrain", "__editable__")):
            (packages / entry.name).symlink_to(entry)
    path = os.pathsep.join([str(ROOT), str(packages)])
    words = (sys.executable, "-S", "-m", "posttrain", "init", "new")
    done = command(tmp_path, *words, PYTHONPATH=path)
    fix = 'Run pip install "posttrain[pipeline]"'
    assert (done.returncode, done.stdout) == (
        1,
        f"error: {sys.executable}: dvc is not installed; it is part of the extra `pipeline`. {fix}\n",
    )
    assert not (tmp_path / "new").exists()
