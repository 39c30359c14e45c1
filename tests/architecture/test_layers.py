"""Imports point one way: a module may import from the layers below its own, and from its own sub-package."""

from __future__ import annotations

import sys

from tests.architecture.sources import home, imports, modules, own, own_imports

LAYERS = (
    {"flows"},
    {"posttrain.__main__"},
    {"posttrain.plan", "posttrain.why"},
    {
        "posttrain.commands.checkpoints.actions",
        "posttrain.commands.reward.agreement",
        "posttrain.preview",
        "posttrain.replay",
        "posttrain.reward_test",
        "posttrain.where",
    },
    {"posttrain.commands.init.project"},
    {"posttrain.template"},
    {"posttrain.checks.params_schema"},  # types the runs of all stages
    {"stages"},
    {"posttrain.pipeline.accept", "posttrain.report"},
    {
        "posttrain.processes.stage",
        "posttrain.compare",
        "posttrain.pipeline.verify",
        "posttrain.checks.run_graph",
        "posttrain.pipeline.status",
    },
    {"posttrain.online", "posttrain.laws", "posttrain.api"},
    {"posttrain.train", "posttrain.evaluate", "posttrain.losses", "posttrain.serve"},
    {"posttrain.sampling"},
    {"posttrain.rewards"},
    {"posttrain.tasks"},
    {"posttrain.algorithms", "posttrain.models"},  # neither knows the other
    {"posttrain.launch"},
    {"posttrain.processes.world"},
    {"posttrain.text", "posttrain.tables", "posttrain.formulas"},
    {"posttrain.current"},
    {
        "posttrain.pipeline.inputs",
        "posttrain.pipeline.orphaned_outputs",
        "posttrain.pipeline.check_inputs",
        "posttrain.lineage.user_text",
    },
    {"posttrain.pipeline.lock_file"},
    {"posttrain.pipeline.code_manifest"},
    {
        "posttrain.params.choices",
        "posttrain.pipeline.lock_check",
        "posttrain.params.slots",
        "posttrain.params.stage_table",
    },
    {
        "posttrain.measure",
        "posttrain.pipeline.fsync",
        "posttrain.pipeline.package_pin",
        "posttrain.pipeline.code_digest",
    },
    {"posttrain.pipeline.digests", "posttrain.pipeline.repair_dvc", "posttrain.params.user_code"},
    {"posttrain.params.params"},
    {"posttrain.params.formats", "posttrain.params.other_names", "posttrain.params.renames", "posttrain.params.seeds"},
    {
        "posttrain.tables.hub_errors",
        "posttrain.measure.progress",
        "posttrain.sandbox",
        "posttrain.pipeline.user_cache",
        "posttrain.workspace",
    },
    {"posttrain.arguments"},
    {"posttrain.errors", "posttrain.rollout", "posttrain.params.lazy_table"},
    {"posttrain"},
)
THIRD_PARTY = {
    "posttrain.formulas": {"torch"},
    "posttrain.algorithms": {"torch", "pydantic"},
    "posttrain.errors": set(),
    "posttrain.params.params": {"pydantic", "ruamel"},
    "posttrain.measure.progress": set(),
    "posttrain.sandbox": set(),
    "posttrain.params.slots": {"pydantic"},
    "posttrain.params.stage_table": set(),
    "posttrain.measure": {"psutil", "torch"},
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
        if part(module) != part(other) and layer(module) >= layer(other)
    ]
    assert not wrong, "\n".join(["an import points up or sideways:", *wrong])


def test_stages_are_started_as_processes() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        for other in own_imports(module)
        if other.startswith("stages.")
        and module not in ("posttrain.checks.params_schema", "posttrain.commands.replay.rerun")
    ]
    assert not wrong, "\n".join(["a stage is run, and imported for the types of its runs or a replay alone:", *wrong])


def test_lower_layers_stay_light() -> None:
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in sorted(foreign(module))
        if (part(module) in THIRD_PARTY and name not in THIRD_PARTY[part(module)])
        or (part(module) == "posttrain.tables" and name in {"torch", "transformers", "prefect"})
        or (part(module).startswith("posttrain") and name == "prefect")
    ]
    assert not wrong, "\n".join(["an import that this layer should not need:", *wrong])
