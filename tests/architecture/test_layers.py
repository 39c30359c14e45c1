"""Imports point one way: a module may import from the layers below its own, and from its own sub-package."""

from __future__ import annotations

import sys

from tests.architecture.sources import home, imports, modules, own, own_imports

LAYERS = (
    {"posttrain.plugins"},
    {"posttrain.__main__"},
    {"flows", "posttrain.pipeline.commands"},
    {"posttrain.pipeline.checks", "posttrain.pipeline.track"},
    {"posttrain.pipeline.lineage", "stages"},
    {"posttrain.pipeline.report"},
    {"posttrain.pipeline.compare", "posttrain.pipeline.outside", "posttrain.pipeline.serve"},
    {"posttrain.pipeline.runs"},
    {"posttrain.pipeline.processes", "posttrain.pipeline.tables", "posttrain.pipeline.template"},
    {"posttrain.pipeline.lock"},
    {"posttrain.pipeline"},
    {"posttrain.pipeline.params"},
    {"posttrain.pipeline.workspace"},
    # the library
    {"posttrain.api"},
    {"posttrain.online"},
    {"posttrain.evaluate"},
    {"posttrain.sampling"},
    {"posttrain.losses", "posttrain.rewards", "posttrain.train"},
    {"posttrain.laws", "posttrain.models", "posttrain.tasks"},
    {"posttrain.algorithms"},
    {"posttrain.data", "posttrain.distributed"},
    {"posttrain.text"},
    {"posttrain.measure"},
    {"posttrain.settings"},
    {"posttrain.sandbox"},
    {"posttrain.extras", "posttrain.files", "posttrain.locks", "posttrain.numerics"},
    {
        "posttrain",
        "posttrain.answers",
        "posttrain.errors",
        "posttrain.formulas",
        "posttrain.isolation",
        "posttrain.rollout",
    },
)
UPWARD = {"posttrain.tasks.mixture": {"posttrain.pipeline.runs.task_tables"}}
"""A task of the pipeline that still lies in the library."""
THIRD_PARTY = {
    "posttrain.formulas": {"torch"},
    "posttrain.algorithms": {"torch", "pydantic"},
    "posttrain.errors": set(),
    "posttrain.settings": {"pydantic", "pydantic_core"},
    "posttrain.measure.progress": set(),
    "posttrain.sandbox": set(),
    "posttrain.pipeline.params.slots": {"pydantic"},
    "posttrain.pipeline.params.stage_table": set(),
    "posttrain.measure": {"colorama", "psutil", "torch"},  # colorama: to keep DVC from wrapping streams in it
}


def part(module: str) -> str:
    """What a module is in LAYERS: its package for stages and flows, its sub-package in the library."""
    return home(module) if module.startswith("posttrain") else module.partition(".")[0]


def layer(module: str) -> int:
    found = [number for number, parts in enumerate(LAYERS) if part(module) in parts]
    assert found, f"{module} has no layer: give it one in LAYERS"
    return found[0]


def foreign(module: str) -> set[str]:
    """The packages outside the project and the standard library that a module imports."""
    names = {name.split(".")[0] for name in imports(module) if not own(name)}
    return names - set(sys.stdlib_module_names) - {""}


def test_imports_point_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        for other in sorted(own_imports(module))
        if part(module) != part(other) and layer(module) >= layer(other) and other not in UPWARD.get(module, ())
    ]
    assert not wrong, "\n".join(["an import points up or sideways:", *wrong])


def test_answers_and_sandbox_import_nothing_of_the_library() -> None:
    for room in ("posttrain.answers", "posttrain.sandbox"):
        inside = [module for module in modules() if part(module) == room]
        assert inside and not {other for one in inside for other in own_imports(one) if part(other) != room}


def test_stages_are_started_as_processes() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        for other in own_imports(module)
        if other.startswith("stages.")
        and module
        not in ("posttrain.pipeline.checks.params_schema", "posttrain.pipeline.commands.replay.rerun", "stages.distill")
    ]
    allowed = "a stage is run, and imported for the types of its runs, a replay, or a student that samples:"
    assert not wrong, "\n".join([allowed, *wrong])


def test_lower_layers_stay_light() -> None:
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in sorted(foreign(module))
        if (part(module) in THIRD_PARTY and name not in THIRD_PARTY[part(module)])
        or (part(module) == "posttrain.pipeline.tables" and name in {"torch", "transformers", "prefect"})
        or (part(module).startswith("posttrain") and name == "prefect")
    ]
    assert not wrong, "\n".join(["an import that this layer should not need:", *wrong])
