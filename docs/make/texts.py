"""Every text that a user reads, with its place: sentences of pages, docstrings, errors, and help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[2]
Kind = Literal["page", "docstring", "error", "help"]
GENERATED: Final = {"api.md", "api-pipeline.md", "algorithms.md", "coverage.md", "trl-keys.md"}
"""Reference pages whose text comes from docstrings and tables."""
CODE: Final = ("posttrain", "stages", "flows")
HELP: Final = ("help", "description", "does")
PLACEHOLDER: Final = "X"
"""What stands for a value that is filled in."""


@dataclass(frozen=True)
class Text:
    """A text and its place in a file."""

    kind: Kind
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def texts(root: Path = ROOT) -> Iterator[Text]:
    """Yield all texts, pages first."""
    for page in pages(root):
        yield from sentences(page.read_text(encoding="utf-8"), page.relative_to(root).as_posix())
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            yield from of_code(file.read_text(encoding="utf-8"), file.relative_to(root).as_posix())


def pages(root: Path = ROOT) -> list[Path]:
    """Return the written pages: README, CHANGELOG, guides and reference."""
    found = [*(root / "docs").glob("*.md"), *(root / "docs/reference").glob("*.md")]
    found += [root / name for name in ("README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md")]
    return sorted(file for file in found if file.is_file() and file.name not in GENERATED)


def sentences(markdown: str, file: str) -> Iterator[Text]:
    """Yield the sentences of a page, without code blocks, headings, links' targets and tables' rules."""
    fenced, start, part = False, 1, ""
    for number, line in enumerate([*markdown.splitlines(), ""], 1):
        if line.startswith("```"):
            fenced = not fenced
        begins = not line.strip() or fenced or line.startswith(("#", "```", "|", "- ", "* ", "<", ">", "!")) or bool(
            re.match(r"\d+\. ", line)
        )  # fmt: skip
        if begins and part:
            yield from _split(part, file, start)
            part = ""
        if fenced or line.startswith(("#", "```", "<", "!")) or re.fullmatch(r"\|[-| :]*", line):
            continue
        if line.startswith("|"):
            for cell in line.strip("| ").split(" | "):
                yield from _split(cell, file, number)
            continue
        start = start if part else number
        part = f"{part} {line.strip()}".strip()


def _split(part: str, file: str, line: int) -> Iterator[Text]:
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", part.lstrip("-*> ")).strip()
    for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[])", plain):
        if len(sentence.split()) >= 4:
            yield Text("page", file, line, sentence)


def of_code(source: str, file: str) -> Iterator[Text]:
    """Yield the public docstrings, the errors and the help texts of a module."""
    tree = ast.parse(source)
    yield from _docstrings(tree, file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node, file)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            kinds: dict[str, Kind] = {"what": "error", "fix": "error", "does": "help", "about": "help"}
            if (kind := kinds.get(node.targets[0].id)) and (text := _constant(node.value)):
                yield Text(kind, file, node.lineno, text)


def _docstrings(tree: ast.Module, file: str) -> Iterator[Text]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text, public = ast.get_docstring(node), not getattr(node, "name", "public").startswith("_")
        if text and public:
            yield Text("docstring", file, node.body[0].lineno, re.sub(r"\s+", " ", text.split("\n\n")[0]))


def _of_call(node: ast.Call, file: str) -> Iterator[Text]:
    name = ast.unparse(node.func)
    for given in node.keywords:
        if given.arg in ("what", "fix") and (text := _constant(given.value)):
            yield Text("error", file, given.value.lineno, text)
        if given.arg in HELP and (text := _constant(given.value)):
            yield Text("help", file, given.value.lineno, text)
    if name in ("ValueError", "TypeError", "SystemExit") and node.args and (text := _constant(node.args[0])):
        yield Text("error", file, node.lineno, text)


def _constant(node: ast.expr) -> str:
    """Return a string, with X for each value that is filled in; empty if it is not a text of four or more words."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values]
        text = "".join(map(str, parts))
    else:
        return ""
    return text if len(text.split()) >= 4 else ""
