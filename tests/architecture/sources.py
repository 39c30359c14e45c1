"""The project's own modules and what each of them imports, read from the syntax tree without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("posttrain", "stages", "flows", "tasks")


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, for every file of the four packages."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = list(file.relative_to(ROOT).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def imports(module: str, at_run_time: bool = False) -> frozenset[str]:
    """Every dotted name that `module` imports, inside functions too; at run time without those under TYPE_CHECKING."""
    file = modules()[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(name for node in _walk(tree(file), at_run_time) for name in _names(node, package))


def own(name: str) -> str | None:
    """The project's module that a dotted name lies in: `posttrain.errors.ParamsError` -> `posttrain.errors`."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


def own_imports(module: str, at_run_time: bool = False) -> set[str]:
    """The project's modules that `module` imports, without itself."""
    return {found for name in imports(module, at_run_time) if (found := own(name))} - {module}


def home(module: str) -> str:
    """Room of a module: `posttrain.train.loop` -> `posttrain.train`; in the pipeline one name more."""
    names = module.split(".")
    return ".".join(names[: 3 if names[:2] == ["posttrain", "pipeline"] else 2])


def _walk(node: ast.AST, at_run_time: bool) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if at_run_time and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _walk(other, at_run_time)
        else:
            yield from _walk(child, at_run_time)


def _names(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(func).endswith(
            "import_module"
        ):
            return [name]
        case _:
            return []
