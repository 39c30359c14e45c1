"""The pages name only what exists: links and their anchors, paths, and commands."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from posttrain.commands.line import DOES
from tests.architecture.sources import ROOT

PAGES = [page for where in ("*.md", "docs/*.md", "custom/*.md", "posttrain/template/*.md") for page in ROOT.glob(where)]
OWN = ("posttrain/", "flows/", "stages/", "tests/", "benchmarks/", "recipes/", "examples/")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text(page: Path) -> str:
    """A page's text; of the changelog only what is not released, because a release may name what has gone since."""
    whole = page.read_text(encoding="utf-8")
    return whole.split("\n## ")[1] if page.name == "CHANGELOG.md" else whole


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    return frozenset(anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE))


def leads_nowhere(page: Path, target: str) -> bool:
    file, _, name = target.partition("#")
    to = (page.parent / file).resolve() if file else page
    return not to.exists() or (name != "" and name not in anchors(to))


@each_page
def test_no_page_has_a_merge_conflict_in_it(page: Path) -> None:
    assert not re.search(r"^(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|) ", page.read_text(encoding="utf-8"), re.MULTILINE)


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    assert not [link for link in links if not re.match(r"\w+:", link) and leads_nowhere(page, link)]


@each_page
def test_every_path_of_the_project_exists(page: Path) -> None:
    words = [word for quoted in re.findall(r"`([^`\n]+)`", FENCE.sub("", text(page))) for word in quoted.split()]
    paths = {word.split("::")[0].rstrip(",;:.") for word in words if word.startswith(OWN)}
    assert not [path for path in sorted(paths) if not any(ROOT.glob(path.rstrip("/")))]


@each_page
def test_every_command_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^|\$ |-m |\()posttrain ([a-z][\w-]*)", text(page), re.MULTILINE))
    assert named <= set(DOES)


def test_the_contents_list_every_page() -> None:
    contents = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    names = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert len(names) > 20 and not [name for name in sorted(names) if f"]({name})" not in contents]


def names_in(file: Path) -> set[str]:
    """The names that a Python file defines at its top, with those of its classes as `Class.name`."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names |= _defined(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for inner in node.body for name in _defined(inner)}
    return names


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


@each_page
def test_every_name_after_a_path_is_in_that_file(page: Path) -> None:
    """As in: `rewards/score.py` `RewardSum.score`."""
    wrong = []
    for path, name in re.findall(r"`([\w/]+\.py)` `([A-Za-z_][\w.]*)`", text(page)):
        file = next((one for one in (ROOT / path, ROOT / "posttrain" / path) if one.is_file()), None)
        if file is None or name not in names_in(file):
            wrong.append(f"{path} has no {name}")
    assert not wrong


PUBLIC = ("posttrain", "posttrain.losses", "posttrain.rewards", "posttrain.tasks")
SHOWN = [*PAGES, *ROOT.glob("examples/*.py"), *ROOT.glob("custom/*.py"), *ROOT.glob("posttrain/template/*.py")]


@pytest.mark.parametrize("file", SHOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_import_of_ours_that_users_see_is_public(file: Path) -> None:
    shown = re.findall(r"^ *from (posttrain[\w.]*) import ([\w, ]+)", text(file), re.MULTILINE)
    names = [(module, name.strip()) for module, listed in shown for name in listed.split(",")]
    assert not [one for one in names if one[0] not in PUBLIC or one[1] not in import_module(one[0]).__all__]


def test_ci_calls_the_two_commands_as_the_readme_prints_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## Two commands.*?```sh\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert len(commands) == 2 and [line for line in script.splitlines() if line in commands] == commands
    unset = [word for line in script.splitlines() if line.startswith("unset ") for word in line.split()[1:]]
    assert all(name.startswith("GIT_") for name in unset) and "env -" not in script and "export" not in script
