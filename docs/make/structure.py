"""The counts of docs/reports/structure.md: how far the library stands apart from the pipeline.

    python -m docs.make.structure

CI holds them: tests/architecture/test_structure.py fails if a count rises.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import posttrain

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/reports/structure.md"
API: Final = ROOT / "docs/reference/api-pipeline.md"
PIPELINE: Final = frozenset({"__main__", "pipeline", "plugins"})
"""Rooms and modules of `posttrain/` that belong to the pipeline or to plugins; all others are the library."""
PUBLIC: Final = ("posttrain", "posttrain.losses", "posttrain.rewards", "posttrain.tasks")
NAMES: Final = re.compile(r"\bdvc (?:repro|checkout|pull|push)|`posttrain [a-z]|\bparams\.yaml\b")
STAGE: Final = re.compile(r"stages\.\w+:\w+")
BEFORE: Final = {
    "names that the library imports from the pipeline": 406,
    "files of the library that import them": 140,
    "texts of the library that name a command, dvc or params.yaml": 25,
    'strings like "stages.sft:SftRun" in posttrain/': 11,
    "names that stages/ imports and the API page lacks": 201,
    "of these, names that docs/reference/api-pipeline.md lacks": 201,
}
"""The counts of this script at 6a910039."""


class Import(NamedTuple):
    """A name that a module imports."""

    module: str
    source: str
    name: str


def files(folder: str) -> list[Path]:
    """Return the Python files of a package, without the template of projects."""
    return [file for file in sorted((ROOT / folder).rglob("*.py")) if "template" not in file.parts]


def module_of(file: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_library(module: str) -> bool:
    """Return whether a module of `posttrain` belongs to the library."""
    parts = module.split(".")
    return parts[0] == "posttrain" and (len(parts) == 1 or parts[1] not in PIPELINE)


def imports(file: Path) -> Iterator[Import]:
    """Yield the names of `posttrain` that a file imports; the submodule where a name is one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posttrain"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file()
                yield Import(module_of(file), inner if is_module else str(node.module), alias.name)


def upward() -> list[Import]:
    """Return what the library imports from the pipeline."""
    found = [one for file in files("posttrain") if is_library(module_of(file)) for one in imports(file)]
    return [one for one in found if not is_library(one.source)]


def undocumented() -> set[tuple[str, str]]:
    """Return the names that `stages/` imports and that are not public."""
    found = {(one.source, one.name) for file in files("stages") for one in imports(file)}
    return {(source, name) for source, name in found if source not in PUBLIC and name not in posttrain.__all__}


def listed() -> set[str]:
    """Return the names on the page of the pipeline's API."""
    found: set[str] = set()
    module = ""
    for line in API.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            module = line[3:]
        elif line.startswith("### "):
            found.add(f"{module}.{line[4:]}")
    return found


def texts(pattern: re.Pattern[str], *, library: bool) -> list[str]:
    """Return the places of texts that match, but for docstrings."""
    found = []
    for file in files("posttrain"):
        if library and not is_library(module_of(file)):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                found += [f"{file.relative_to(ROOT)}:{node.lineno}"] * bool(pattern.search(node.value))
    return found


def counts() -> dict[str, int]:
    """Return the counts that CI holds."""
    wrong = upward()
    on_page = listed()
    values = (
        len(wrong),
        len({one.module for one in wrong}),
        len(texts(NAMES, library=True)),
        len(texts(STAGE, library=False)),
        len(undocumented()),
        sum(f"{source}.{name}" not in on_page for source, name in undocumented()),
    )
    return dict(zip(BEFORE, values, strict=True))


def lines(*, library: bool) -> int:
    """Return the lines of the library, or of the pipeline with its stages, flows and toy tasks."""
    found = [file for file in files("posttrain") if is_library(module_of(file)) is library]
    found += [] if library else [*files("stages"), *files("flows"), *files("tasks")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in found)


def page() -> str:
    """Return the page."""
    now, wrong = counts(), upward()
    by_module: dict[str, int] = {}
    for one in wrong:
        by_module[one.source] = by_module.get(one.source, 0) + 1
    rows = [f"| {name} | {BEFORE[name]} | {count} |" for name, count in now.items()]
    left = [f"- `{module}`: {count} names" for module, count in sorted(by_module.items(), key=lambda one: -one[1])]
    parts = ", ".join(f"`{name}`" for name in sorted(PIPELINE))
    return "\n".join(
        [
            "# Structure",
            "",
            "The library must not import the pipeline. `python -m docs.make.structure` counts what is left, and CI",
            "fails if a count rises. `make test-library` counts the distributions of `pip install .`, 55 at most.",
            "",
            "| | 6a910039 | now |",
            "|---|---:|---:|",
            *rows,
            "",
            "These parts of `posttrain/` count as pipeline:",
            f"{parts}.",
            "",
            "Names that each room imports from each other one, rooms from the ground up (`python -m",
            "docs.make.structure_picture`; its right half shows the commit before the picture was made):",
            "",
            "![A matrix of rooms before and now; no red cell is left](structure.svg)",
            "",
            *(["## What the library still imports from the pipeline", "", *left, ""] if left else []),
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write("\n".join(f"{count:5}  {name}" for name, count in counts().items()) + "\n")
    both = f"library {lines(library=True):,}, pipeline with stages, flows and toy tasks {lines(library=False):,}"
    sys.stdout.write(f"lines: {both}\n")
