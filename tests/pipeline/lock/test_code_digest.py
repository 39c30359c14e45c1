"""What of a Python file counts, what it imports, and which rows of listings it uses."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.code_digest import (
    OUTLINES_FILE,
    Outline,
    Outlines,
    _imports,
    _is_docstring,
    _is_number,
    _listing,
    _place,
    _short,
    _span,
    _stored_outlines,
    _texts,
    _used_rows,
    _version,
    import_line,
    is_blank,
    normalised,
    outlined,
)
from posttrain.pipeline.lock.digests import boot, mark

TEXT = '''"""A module."""
import os
from . import near
from .other import thing
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import hidden
NAME = "posttrain.data.columns"
ROWS: dict = {"one": Row("a", by="b"), "two": 2}
LISTED = Listing("posttrain.rewards", "REWARDS", group="rewards")
used, weights = TASKS["two_step"], {"correct": 1.0, "format": 2}
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.py"
    file.write_text(TEXT)
    return file


def test_the_outline_of_a_file(file: Path) -> None:
    found = outlined(file, "custom.inner")
    assert found.imports == [
        "custom.inner.near", "custom.inner.other.thing", "os", "posttrain.data.columns", "typing.TYPE_CHECKING",
    ]  # fmt: skip
    assert found.names == ["correct", "format", "two_step"]
    assert found.listings == [["posttrain.rewards", "REWARDS", "rewards"]]
    assert found.rows == {"ROWS": {"one": ["a", "b"], "two": []}}
    assert normalised(file) == outlined(file, "").digest == found.digest
    assert import_line(file, "custom.inner", "custom.inner.other.thing") == 4 and import_line(file, "", "os") == 2


def test_only_code_counts(file: Path) -> None:
    before = normalised(file)
    file.write_text(TEXT.replace('"""A module."""', "# a comment") + "\n\n")
    assert normalised(file) == before
    file.write_text(TEXT + "x = 1\n")
    assert normalised(file) != before
    file.write_text('"""Only a docstring."""\n')
    assert is_blank(normalised(file)) is True and is_blank(before) is False


def test_a_file_that_is_not_python_counts_byte_by_byte(file: Path) -> None:
    other = file.with_name("a.jinja")
    other.write_text("{{ x }}")
    assert outlined(other, "") == Outline(hashlib.sha256(b"{{ x }}").hexdigest()[:16], [], [], [], {})
    file.write_text("def f(:\n")
    with pytest.raises(PipelineError, match=r"a\.py line 1: this is not valid Python"):
        outlined(file, "")


def node(text: str) -> ast.AST:
    (statement,) = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def test_parts_of_a_file() -> None:
    assert _imports(node("import a.b, c"), "") == ["a.b", "c"]
    assert _imports(node("from .. import a"), "x.y.z") == ["x.y.a"]
    assert _imports(node("from a import b"), "x") == ["a.b"]
    assert _imports(node("'posttrain.errors'"), "") == ["posttrain.errors"] and _imports(node("'text'"), "") == []
    assert _listing(node("Listing('a', 'B')")) == ["a", "B"]
    assert _listing(node("Listing('a', 'B', group='c', adopt=f)")) == ["a", "B", "c"]
    assert _listing(node("f('a', 'B')")) is None
    assert _used_rows(node("TASKS['a']")) == ["a"] and _used_rows(node("tasks['a']")) == []
    assert _used_rows(node("{'a': 1, 'b': 0.5}")) == ["a", "b"] and _used_rows(node("{'a': 'b'}")) == []
    assert _texts(node("f('b', x='a', y=1)")) == ["a", "b"]
    assert _is_number(node("1.5")) is True and _is_number(node("'1'")) is False and _is_number(node("x")) is False
    (docstring,), (call,) = ast.parse("'text'").body, ast.parse("f()").body
    assert _is_docstring(docstring) is True and _is_docstring(call) is False


def test_places_count_characters() -> None:
    lines = ["größer = 'ä'\n"]
    (statement,) = ast.parse(lines[0]).body
    assert _place(1, 8, lines) == (1, 6)
    assert _span(statement, lines) == ((1, 0), (1, 12))
    assert _short("") == hashlib.sha256(b"").hexdigest()[:16]


def test_outlines_are_kept_between_processes(file: Path) -> None:
    OUTLINES_FILE.parent.mkdir(parents=True)
    os.utime(file, ns=(1, 1))
    assert _stored_outlines() == {} and _version()[0] == boot()
    first = Outlines()
    outline = first.of("a.py", "")
    assert outline == outlined(file, "") and first.of("a.py", "") is outline
    assert first.marks == {"a.py": mark(file)}
    kept = {"a.py": {"mark": list(mark(file)), "outline": {**vars(outline), "digest": "kept"}}}
    OUTLINES_FILE.write_text(json.dumps({"of": _version(), "files": kept}))
    assert _stored_outlines() == kept
    assert Outlines().of("a.py", "").digest == "kept"
    file.write_text(TEXT)
    assert Outlines().of("a.py", "") == outline
    OUTLINES_FILE.write_text("{")
    assert _stored_outlines() == {}
    OUTLINES_FILE.write_text('{"of": "other", "files": {"a": 1}}')
    assert _stored_outlines() == {}
