"""Our own plugins: each is a folder that nothing imports by name, and that entry points name."""

from __future__ import annotations

import re
import tomllib

from posttrain.settings.plugins import GROUPS
from tests.architecture.sources import ROOT, modules, own_imports

PLUGINS = ROOT / "posttrain/plugins"
LINES = 700
"""Lines that the folder of a plugin may have."""


def folders() -> list[str]:
    return sorted(file.parent.name for file in PLUGINS.glob("*/__init__.py"))


def points() -> dict[str, dict[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, dict[str, str]] = project["entry-points"]
    return found


def test_a_plugin_is_a_small_folder_with_tests() -> None:
    """A folder of tests without a plugin would be forgotten: `make test-plugins` takes both away together."""
    for name in folders():
        lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (PLUGINS / name).rglob("*.py"))
        assert lines <= LINES, f"posttrain/plugins/{name} has {lines} lines"
        assert list((ROOT / "tests/plugins" / name).glob("test_*.py")), f"tests/plugins/{name} has no tests"


def test_nobody_imports_a_plugin_by_name() -> None:
    wrong = []
    for module, file in modules().items():
        inside = module.split(".")[2] if module.startswith("posttrain.plugins.") else ""
        named = set(re.findall(r"posttrain[./]plugins[./](\w+)", file.read_text(encoding="utf-8")))
        named |= {other.split(".")[2] for other in own_imports(module) if other.startswith("posttrain.plugins.")}
        wrong += [f"{module} names the plugin {name}" for name in named - {inside}]
    assert not wrong, "\n".join(["a plugin is found by its entry point:", *wrong])


def test_every_entry_point_names_an_object_of_a_group_that_is_read() -> None:
    for group, named in points().items():
        assert group.removeprefix("posttrain.") in GROUPS, group
        for name, value in named.items():
            module, _, variable = value.partition(":")
            if module.startswith("posttrain.plugins.") and module.split(".")[2] not in folders():
                continue  # taken away; `posttrain check` says so
            file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            assert file.is_file(), f"{group} {name} names {module}"
            assert not variable or variable in file.read_text(encoding="utf-8"), f"{value} is not there"
