"""Imports point one way, as the contracts in pyproject.toml say, and the lower layers need few other packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.sources import ROOT, home, imports, modules, own, tree

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
PIPELINE_BELOW_STAGES = '"stages | flows", "posttrain.pipeline"]'


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--config", str(config)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def part(module: str) -> str:
    """What a module is in THIRD_PARTY: its package for stages and flows, its room in posttrain."""
    return home(module) if module.startswith("posttrain") else module.partition(".")[0]


def foreign(module: str) -> set[str]:
    """The packages outside the project and the standard library that a module imports."""
    names = {name.split(".")[0] for name in imports(module) if not own(name)}
    return names - set(sys.stdlib_module_names) - {""}


def test_imports_point_one_way() -> None:
    done = lint_imports(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout


def test_an_import_that_a_contract_forbids_is_found(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert text.count(PIPELINE_BELOW_STAGES) == 1
    turned = '"posttrain.pipeline", "stages | flows"]'
    (tmp_path / "pyproject.toml").write_text(text.replace(PIPELINE_BELOW_STAGES, turned), encoding="utf-8")
    done = lint_imports(tmp_path / "pyproject.toml")
    assert done.returncode == 1 and "stages.sft -> " in done.stdout, done.stdout


def test_no_import_is_an_exception() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert [one for contract in settings["contracts"] for one in contract.get("ignore_imports", ())] == []


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


def test_one_file_starts_stages_and_flows_by_name() -> None:
    name = re.compile(r"(posttrain\.pipeline\.)?(stages|flows)(\.\w+)*")
    found = {
        module
        for module, file in modules().items()
        if module.startswith("posttrain.")
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if name.fullmatch(node.value) and "." in node.value
    }
    assert found == {"posttrain.pipeline.by_name"}
