"""A stage's deps in dvc.yaml are the code it imports: with more it runs for nothing, with less it goes stale unseen."""

from __future__ import annotations

import pytest
from dvc.repo import Repo

from tests.architecture.deps import COMMAND, declared, needed
from tests.architecture.sources import ROOT


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


def test_deps_are_the_import_closure(stages: dict[str, object]) -> None:
    wrong = []
    for name, stage in stages.items():
        module = COMMAND.match(str(stage.cmd))["module"]  # type: ignore[attr-defined,index]
        want, have = needed(module), declared(stage)
        wrong += [f"{name}: imports {path} ({want[path]}), which its deps lack" for path in sorted(want.keys() - have)]
        wrong += [
            f"{name}: has the dep {path}, which stages/{module}.py never imports" for path in sorted(have - want.keys())
        ]
        if want.keys() != have:
            wrong.append(f"{name}: python -m tests.architecture.deps {module}  prints the right ones")
    assert not wrong, "\n".join(["dvc.yaml and the imports disagree:", *wrong])
