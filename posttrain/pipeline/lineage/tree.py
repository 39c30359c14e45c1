"""The answer of `why`: a tree of facts, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_STORED = "not stored"
LONGEST = 110
"""The most characters of a quoted text."""


@dataclass
class Node:
    """An object, its properties, and what it was made from."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    parts: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def lines(node: Node, indent: str = "") -> Iterator[str]:
    """Yield the tree as indented lines."""
    yield f"{indent}{node.title}"
    for name, value in node.facts.items():
        yield f"{indent}  {name}: {_shown(value)}"
    for part in node.parts:
        yield from lines(part, f"{indent}  ")


def plain(node: Node) -> dict[str, Any]:
    """Return the tree as plain data."""
    return {"title": node.title, "facts": node.facts, "parts": [plain(part) for part in node.parts]}


def quoted(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}".rstrip() for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
