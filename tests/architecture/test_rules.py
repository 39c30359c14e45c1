"""House rules that a linter does not know."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import TypeVar

from tests.architecture.sources import PACKAGES, ROOT, imports, modules, tree

FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"torch.save", "torch.load", "exec", "eval"}
RUNS_PROGRAMS = "posttrain/sandbox/child.py"
"""The only file that runs text as Python, in a process that is isolated before it starts."""
FORBIDDEN_WORDS = {"utils", "util", "helpers", "helper", "manager", "misc", "common"}
SLOW_IMPORTS = {"datasets", "trl"}


N = TypeVar("N", bound=ast.AST)


def every(kind: type[N]) -> Iterator[tuple[str, N]]:
    """(where, node) for each node of a kind in the three packages."""
    for file in modules().values():
        for node in ast.walk(tree(file)):
            if isinstance(node, kind):
                yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def lines(name: str) -> int:
    return len(modules()[name].read_text(encoding="utf-8").splitlines())


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    unreleased, *released = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert unreleased == "Unreleased" and released[0] == version
    assert f"This is version {version};" in (ROOT / "docs/versions.md").read_text(encoding="utf-8")


def test_there_is_something_to_check() -> None:
    assert {name.split(".")[0] for name in modules()} == set(PACKAGES)


def test_no_pickle() -> None:
    wrong = [f"{m} imports {name}" for m in modules() for name in imports(m) if name.split(".")[0] in FORBIDDEN_MODULES]
    wrong += [
        f"{where}: {ast.unparse(c.func)}"
        for where, c in every(ast.Call)
        if ast.unparse(c.func) in FORBIDDEN_CALLS and not where.startswith(RUNS_PROGRAMS)
    ]
    assert not wrong, "\n".join(["weights are safetensors, data is parquet or JSON:", *wrong])


def test_no_remote_code() -> None:
    wrong = [
        where
        for where, word in every(ast.keyword)
        if word.arg == "trust_remote_code" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
    ]
    assert not wrong, "\n".join(["trust_remote_code may only be False:", *wrong])


def test_no_chat_template_in_the_own_process() -> None:
    names = ("apply_chat_template", "render_jinja_template")
    wrong = [where for where, node in every(ast.Attribute) if node.attr in names]
    assert not wrong, "\n".join(["render by posttrain/text/templates.py, which has limits:", *wrong])


def test_no_bare_except() -> None:
    wrong = [where for where, node in every(ast.ExceptHandler) if node.type is None]
    assert not wrong, "\n".join(["name what is caught:", *wrong])


def test_stages_are_short() -> None:
    wrong = [f"{name}: {lines(name)} lines" for name in modules() if name.startswith("stages.") and lines(name) > 120]
    assert not wrong, "\n".join(["a stage file has 120 lines at most, the rest belongs in posttrain/:", *wrong])


def test_files_are_small() -> None:
    wrong = [f"{name}: {lines(name)} lines" for name in modules() if lines(name) > 400]
    assert not wrong, "\n".join(["split the file (300 lines is the aim, 400 the end):", *wrong])


def test_functions_are_small() -> None:
    functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = [*every(ast.FunctionDef)]
    functions += every(ast.AsyncFunctionDef)
    sized = [(f"{where} {node.name}", (node.end_lineno or 0) - node.lineno + 1) for where, node in functions]
    wrong = [f"{name}: {size} lines" for name, size in sized if size > 60]
    assert not wrong, "\n".join(["split the function (40 lines is the aim, 60 the end):", *wrong])


def test_names_say_what_is_inside() -> None:
    wrong = [name for name in modules() if set(name.split(".")[-1].split("_")) & FORBIDDEN_WORDS]
    assert not wrong, "\n".join(["name the file for what it holds:", *wrong])


def test_slow_imports_are_lazy() -> None:
    wrong = []
    for name, file in modules().items():
        for node in tree(file).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            wrong += [
                f"{name}: import {n} inside the function that needs it"
                for n in names
                if n.split(".")[0] in SLOW_IMPORTS
            ]
    assert not wrong, "\n".join(wrong)
