"""The pages name only what exists: links and their anchors, paths, and commands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from posttrain.arguments import parser
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
    known = next(action.choices for action in parser()._actions if action.dest == "command")
    named = set(re.findall(r"python -m posttrain ([a-z][\w-]*)", text(page)))
    assert known is not None and named <= set(known)


def test_the_contents_list_every_page() -> None:
    contents = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    names = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert len(names) > 20 and not [name for name in sorted(names) if f"]({name})" not in contents]
