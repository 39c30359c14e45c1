"""What code/ says of a run is what the run imports: it is run, and its modules are compared with the list."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.pipeline.lock.code_manifest import Library, code_path
from tests.architecture.sources import ROOT, modules, own, tree
from tests.marks import slow_except

RUN = """
import importlib, json, sys
kind, run, out = sys.argv[1:]
importlib.import_module(f"stages.{kind}").main(run)
files = {name: module.__file__ for name, module in sys.modules.items() if name.startswith(("posttrain", "stages"))}
open(out, "w").write(json.dumps([name for name, file in files.items() if file]))
"""
MOST = 197
"""Files that the miniature's GRPO run may depend on; lower it when fewer are left."""


def run(folder: Path, stage: str) -> set[str]:
    """Run a stage once more and return the library's modules that it has imported."""
    kind, _, name = stage.partition("@")
    out = folder / "imported.json"
    command = [sys.executable, "-c", RUN, kind, name, str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(out.read_text()))


def deferred(imported: set[str], library: Library) -> set[str]:
    """Modules that functions of the imported ones import: needed only where the function is called."""
    inside = set()
    for module in imported & modules().keys():
        for function in ast.walk(tree(modules()[module])):
            if isinstance(function, ast.FunctionDef):
                nodes = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                names = [
                    f"{getattr(node, 'module', None) or ''}.{a.name}".strip(".") for node in nodes for a in node.names
                ]
                inside |= {found for name in names if (found := own(name))}
    return {name for module in inside for name in library._closure([module], set())}


@pytest.mark.parametrize("stage", slow_except(("online@grpo",), ("online@grpo", "preference@dpo", "sft@main")))
def test_a_run_depends_on_what_it_imports(stage: str, own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    library = Library()
    names = {str(file.relative_to(ROOT)): name for name, file in library.modules.items() if file.is_absolute()}
    listed = {names[file] for file in json.loads(code_path(stage).read_text())["files"]}
    imported = run(own_workspace, stage)
    never = listed - imported - deferred(imported, library)
    assert not never, f"{stage} lists files that it never imports: {sorted(never)}"


def test_the_miniature_depends_on_no_more_files_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    from posttrain.pipeline.params.yaml_files import read_yaml

    assert len(Library().code("online@grpo", read_yaml("params.yaml"))["files"]) <= MOST


def test_the_report_asks_the_rewards_of_evaluations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    from posttrain.pipeline.params.yaml_files import read_yaml
    from posttrain.rewards.catalog import REWARDS

    settings, library = read_yaml("params.yaml"), Library()
    for name, module in REWARDS.modules.items():
        settings["evaluate"]["settings"]["reward"] = {"own name": {"type": name}}
        files = library.code("report", settings)["files"]
        assert str(library.modules[module].relative_to(ROOT)) in files, name


@pytest.mark.parametrize("kind", ["numeric", "exact", "regex", "math", "choice"])
def test_the_parser_of_answers_is_code_of_the_runs_that_compare_answers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`numeric`, the default, reads what is no plain number as `math` does. Texts and patterns need no parser."""
    monkeypatch.chdir(ROOT)
    from posttrain.pipeline.params.yaml_files import read_yaml

    settings = read_yaml("params.yaml")
    settings["online"]["runs"]["grpo"]["reward"] = {"correct": {"weight": 1.0, "answer": kind}}
    files = Library().code("online@grpo", settings)["files"]
    assert ("posttrain/answers/finished.py" in files) == (kind in ("numeric", "math"))
    assert ("posttrain/answers/choice.py" in files) == (kind == "choice")


def test_prompts_that_were_sampled_and_filtered_bring_the_code_of_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tables name the task in each row, so that a run imports it."""
    monkeypatch.chdir(ROOT)
    from posttrain.pipeline.params.yaml_files import read_yaml

    settings = read_yaml("params.yaml")
    directly = Library().code("online@grpo", settings)["files"]
    settings["data"]["samples"]["medium"] = {"policy": "sft/main", "data": "two_step/prompts", "reward_model": "none"}
    settings["data"]["filters"] = {"fewer": {"data": "medium/prompts", "against": "medium/prompts"}}
    settings["online"]["runs"]["grpo"]["data"] = "fewer/prompts"
    found = Library().code("online@grpo", settings)["files"]
    assert "posttrain/pipeline/toy_tasks/two_step/task.py" in found and found == directly
