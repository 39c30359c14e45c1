"""Every stage of dvc.yaml is a file of stages/ and depends on the code of its own run alone."""

from __future__ import annotations

import re

import pytest
from dvc.repo import Repo

from posttrain.pipeline.lock.code_manifest import CODE, UNCOUNTED, Library, code_path
from tests.architecture.sources import ROOT, modules, own_imports

COMMAND = re.compile(r"python -m stages\.(?P<module>\w+)")


@pytest.fixture(scope="module")
def stages() -> dict[str, object]:
    """Every stage of dvc.yaml as DVC expands it, one per foreach item."""
    with Repo(str(ROOT)) as repo:
        # What was added by `dvc add` is a stage without a name.
        return {stage.name: stage for stage in repo.index.stages if hasattr(stage, "name")}


def test_every_stage_is_a_stage_file(stages: dict[str, object]) -> None:
    assert stages, "dvc.yaml declares no stage"
    for name, stage in stages.items():
        found = COMMAND.match(str(stage.cmd))  # type: ignore[attr-defined]
        assert found, f"dvc.yaml, stage {name}: the command has to be `python -m stages.NAME ...`"
        assert (ROOT / "stages" / f"{found['module']}.py").is_file(), (
            f"dvc.yaml, stage {name}: no stages/{found['module']}.py"
        )


def test_what_only_measures_imports_what_every_run_can_load() -> None:
    """Else a run would load a file that its code does not list."""
    always = set(Library().code("data_files@run", {})["files"])
    training = (
        "posttrain.__main__",
        "posttrain.pipeline.processes.",
        "posttrain.pipeline.commands",
    )  # what they import is listed or not run
    for module in filter(lambda name: name.startswith(UNCOUNTED) and not name.startswith(training), modules()):
        others = {name for name in own_imports(module) if not name.startswith(UNCOUNTED)}
        assert {modules()[name].relative_to(ROOT).as_posix() for name in others} <= always, module


def test_a_stage_depends_on_the_code_of_its_own_run(stages: dict[str, object]) -> None:
    folders = ("posttrain", "stages", "tasks", "custom", "code", "flows")
    for name, stage in stages.items():
        deps = {dep.def_path for dep in stage.deps}  # type: ignore[attr-defined]
        code = {path for path in deps if path.split("/")[0] in folders}
        assert code == ({"posttrain", "stages", "tasks", "custom"} if name == CODE else {str(code_path(name))}), name
