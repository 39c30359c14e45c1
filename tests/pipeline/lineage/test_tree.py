"""The answer of `why` as lines and as data."""

from __future__ import annotations

from posttrain.pipeline.lineage.tree import LONGEST, Node, lines, plain, quoted

TREE = Node("a", {"x": 0.123456789, "y": [1, "b"], "z": {"k": 2, "empty": ""}}, [Node("b"), Node("c", {"n": None})])


def test_walk() -> None:
    assert [node.title for node in TREE.walk()] == ["a", "b", "c"]


def test_lines() -> None:
    assert list(lines(TREE)) == ["a", "  x: 0.123457", "  y: 1, b", "  z: k 2, empty", "  b", "  c", "    n: None"]


def test_plain() -> None:
    assert plain(TREE)["parts"] == [{"title": "b", "facts": {}, "parts": []},
                                    {"title": "c", "facts": {"n": None}, "parts": []}]  # fmt: skip
    assert (plain(TREE)["title"], plain(TREE)["facts"]) == ("a", TREE.facts)


def test_quoted() -> None:
    assert quoted("a\n  b") == "a b" and quoted("x" * 500) == "x" * LONGEST + "..."
