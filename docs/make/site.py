"""Makes the README the site's home, and turns links of the repository into links of the site.

It also brings files that pages link to into the site, and keeps pages of evidence out of the search.
"""

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


HOME, CONTENTS = "README.md", "contents.md"
"""The repository's README and docs/README.md, as pages of the site."""
EVIDENCE = "reports/"
"""The folder of pages that hold measurements. Their many numbers would hide the guides in the search."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beside docs/, and make the README the home."""
    if (contents := files.get_file_from_path(HOME)) is not None:
        files.remove(contents)
    for name, source in {HOME: HOME, CONTENTS: "docs/README.md", **{name: name for name in BESIDE}}.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page."""
    name = page.file.src_uri
    if name.startswith(EVIDENCE):
        page.meta["search"] = {"exclude": True}
    place = name if name in (HOME, *BESIDE) else "docs/README.md" if name == CONTENTS else f"docs/{name}"
    folder = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[1]))
        target = CONTENTS if target == "docs/README.md" else target.removeprefix("docs/")
        return f"]({posixpath.relpath(target, folder or '.')}{link[2] or ''})"

    return LINK.sub(moved, markdown)
