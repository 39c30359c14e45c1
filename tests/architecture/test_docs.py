"""The pages name only what exists: links and their anchors, paths, commands, names of files, and public imports."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from docs.make import WRITERS
from posttrain.pipeline.commands.line import DOES
from tests.architecture.sources import ROOT

PAGES = [
    page
    for where in ("*.md", "docs/**/*.md", "custom/*.md", "posttrain/pipeline/template/*.md")
    for page in ROOT.glob(where)
]
READING = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
OWN = ("posttrain/", "flows/", "stages/", "tests/", "benchmarks/", "recipes/", "examples/")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
PUBLIC = ("posttrain", "posttrain.losses", "posttrain.rewards", "posttrain.tasks")


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


def wrong_marks(page: Path) -> list[str]:
    return re.findall(r"^(?:<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|) .*$", page.read_text(encoding="utf-8"), re.MULTILINE)


def wrong_links(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in links if not re.match(r"\w+:", link) and leads_nowhere(page, link)]


def wrong_paths(page: Path) -> list[str]:
    words = [word for quoted in re.findall(r"`([^`\n]+)`", FENCE.sub("", text(page))) for word in quoted.split()]
    paths = {word.split("::")[0].rstrip(",;:.") for word in words if word.startswith(OWN)}
    return [path for path in sorted(paths) if not any(ROOT.glob(path.rstrip("/")))]


def wrong_commands(page: Path) -> list[str]:
    named = set(re.findall(r"(?:`|^|\$ |-m |\()posttrain ([a-z][\w-]*)", text(page), re.MULTILINE))
    return sorted(named - set(DOES))


def wrong_names(page: Path) -> list[str]:
    """The names that are not in the file named before them, as in: `rewards/score.py` `RewardSum.score`."""
    wrong = []
    for path, name in re.findall(r"`([\w/]+\.py)` `([A-Za-z_][\w.]*)`", text(page)):
        file = next((file for file in (ROOT / path, ROOT / "posttrain" / path) if file.is_file()), None)
        if file is None or name not in names_in(file):
            wrong.append(f"{path} has no {name}")
    return wrong


def wrong_imports(file: Path) -> list[tuple[str, str]]:
    """The imports of ours that users see and that are not public."""
    shown = re.findall(r"^ *from (posttrain[\w.]*) import ([\w, ]+)", text(file), re.MULTILINE)
    names = [(module, name.strip()) for module, listed in shown for name in listed.split(",")]
    return [name for name in names if name[0] not in PUBLIC or name[1] not in import_module(name[0]).__all__]


CHECKS = (wrong_marks, wrong_links, wrong_paths, wrong_commands, wrong_names, wrong_imports)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_what_exists(page: Path) -> None:
    assert {check.__name__: found for check in CHECKS if (found := check(page))} == {}


def test_examples_import_only_what_is_public() -> None:
    files = [*ROOT.glob("examples/*.py"), *ROOT.glob("custom/*.py"), *ROOT.glob("posttrain/pipeline/template/*.py")]
    assert files and not [(file.name, found) for file in files if (found := wrong_imports(file))]


def test_the_contents_and_the_site_list_every_page() -> None:
    contents = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    every = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} - {"README.md"}
    assert len(READING) > 20 and not [name for name in sorted(READING) if f"]({name})" not in contents]
    assert not [name for name in sorted(every) if f" {name}\n" not in site]


def test_a_report_is_linked_from_the_page_that_says_how_we_know() -> None:
    page = (ROOT / "docs/how-we-know.md").read_text(encoding="utf-8")
    assert not [file.name for file in ROOT.glob("docs/reports/*.md") if f"](reports/{file.name})" not in page]


def test_every_written_page_has_writers_that_exist_and_no_report_is_without() -> None:
    written = {
        str(page.relative_to(ROOT / "docs"))
        for folder in ("reports", "reference")
        for page in ROOT.glob(f"docs/{folder}/*.md")
    }
    by_hand = {name for name in written - set(WRITERS) if name.startswith("reference/")}
    assert written - by_hand == set(WRITERS)
    assert not [module for modules in WRITERS.values() for module in modules if not (ROOT / module).is_file()]


def test_every_page_that_code_and_errors_name_exists() -> None:
    """The pages that benchmarks and tests write may still have to be written."""
    folders = ("posttrain", "stages", "flows", "tasks", "recipes", "examples", "custom")
    files = [file for folder in folders for ending in ("py", "yaml") for file in ROOT.glob(f"{folder}/**/*.{ending}")]
    page = re.compile(r"\bdocs/[\w./-]*\.md(?:#[\w-]+)?")
    named = {target for file in files for target in page.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 15 and not [target for target in named if leads_nowhere(ROOT / "README.md", target)]


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


def test_ci_calls_the_two_commands_as_the_readme_prints_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## Two commands.*?```sh\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert len(commands) == 2 and [line for line in script.splitlines() if line in commands] == commands
    unset = [word for line in script.splitlines() if line.startswith("unset ") for word in line.split()[1:]]
    assert all(name.startswith("GIT_") for name in unset) and "env -" not in script and "export" not in script


def test_the_first_page_lists_every_command() -> None:
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert [name for name in DOES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/first-*.md")), ids=lambda page: str(page.name))
def test_a_guide_names_the_machine_of_its_figures(page: Path) -> None:
    """Processors round differently: a reader's figures are others, and that is not a mistake of theirs."""
    before = page.read_text(encoding="utf-8").partition("\n```\nsetting ")
    assert not before[1] or re.search(r"AMD|Intel|NVIDIA", before[0].rpartition("\n```")[2])


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("docs/gpu.md", "tuned TRL"),  # TRL's side had two settings of its own, and neither packing nor Liger
        ("docs/gpu.md", "one after the other"),  # vLLM's sampler reads an array of seeds
        ("docs/reports/coverage.md", "seeds: +"),  # no run of these rows is kept
        ("docs/reports/coverage.md", "seeds: -"),
    ],
)
def test_what_was_taken_back_stays_out(page: str, claim: str) -> None:
    assert claim not in (ROOT / page).read_text(encoding="utf-8")
