"""Brings files that pages link to into the site, and turns links of the repository into links of the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE = (
    *("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/read_rollouts.py"),
    *("recipes/iterated.yaml", "tests/library/rewards/rules_of_judgement.md"),
)
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beside docs/."""
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page."""
    place = page.file.src_uri if page.file.src_uri in BESIDE else f"docs/{page.file.src_uri}"
    folder = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[1])).removeprefix("docs/")
        return f"]({posixpath.relpath(target, folder or '.')}{link[2] or ''})"

    return LINK.sub(moved, markdown)
