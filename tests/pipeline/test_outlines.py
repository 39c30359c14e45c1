"""What of a Python file counts for staleness, and which rows of tables a run names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.errors import PipelineError
from posttrain.online.runs import DISTILL, ONLINE
from posttrain.params.formats import read_yaml
from posttrain.pipeline.code_digest import TABLES, normalised, outlined
from posttrain.pipeline.code_manifest import Library, differences
from posttrain.workspace import PARAMS_FILE
from stages.preference import PREFERENCE
from tests.architecture.sources import ROOT, modules, tree

CODE = '''"""A module."""

import os


def f(x):
    """A docstring."""
    return {"a": x}  # a comment
'''


def digest(folder: Path, text: str) -> str:
    file = folder / "a.py"
    file.write_text(text, encoding="utf-8")
    return normalised(file)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # a comment", ""),
        ("  # a comment", "  # größer"),
        ('    """A docstring."""\n', ""),
        ('"""A module."""\n\n', '"""Ein Modul, größer."""\n'),
        ("\n\n\ndef", "\n# here\n\n\n\ndef"),
        ('{"a": x}', '{\n        "a": x\n    }'),
        ("    return", "    'a text that stands alone'\n    return"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert old in CODE
    assert digest(tmp_path, CODE.replace(old, new)) == digest(tmp_path, CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("import os", "import sys"), ('"a"', '"b"'), ("(x)", "(x, y=1)"), ("    return", "    if x:\n        return")],
)
def test_code_counts(tmp_path: Path, old: str, new: str) -> None:
    assert old in CODE
    assert digest(tmp_path, CODE.replace(old, new)) != digest(tmp_path, CODE)


def test_a_row_counts_for_those_that_name_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.py"
    text = 'POLICY_ROWS = table(K, (Row("a", 1, {"é": "b"}), Row("b", 2)))\nREWARDS = {"a": f, "c": g}\n'
    file.write_text(text, encoding="utf-8")
    before = outlined(file, "")
    assert set(before.rows) == {"a", "b", "c"} and before.rows["a"].names == ["a", "b", "é"]
    file.write_text(text.replace('Row("b", 2)', 'Row("b", 3), Row("d", 4)'), encoding="utf-8")
    after = outlined(file, "")
    assert before.digest({"a", "c"}) == after.digest({"a", "c"})
    assert before.digest({"b"}) != after.digest({"b"})


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"a\.py line 2: this is not valid Python"):
        digest(tmp_path, "x = 1\ndef f(:\n")


def test_the_tables_are_found_with_their_rows() -> None:
    found: dict[str, set[str]] = {}
    for file in modules().values():
        for node in tree(file).body:
            target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
            if (name := getattr(target, "id", None)) in TABLES:
                found.setdefault(name, set()).update(outlined(file, "").rows)
    assert set(found) == TABLES and all(found.values())
    assert found["POLICY_ROWS"] == set(POLICY_ROWS)
    assert found["PREFERENCE_ROWS"] >= set(PREFERENCE_ROWS)


@cache
def library() -> Library:
    return Library()


def run_of(kind: str, settings: dict[str, Any]) -> dict[str, str]:
    return library().code(f"{kind}@run", {kind: {"runs": {"run": settings}}})["files"]


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        *(("online", name) for name in ONLINE),
        *(("preference", name) for name in PREFERENCE),
        *(("distill", name) for name in DISTILL),
    ],
)
def test_what_a_row_uses_is_in_the_code_of_a_run_that_names_it(
    kind: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices of each row are entries that a run of its name counts: by default, by the row or by another row."""
    monkeypatch.chdir(ROOT)
    row = {"online": ONLINE, "preference": PREFERENCE, "distill": DISTILL}[kind][algorithm].row
    used = json.loads(row.settings().model_dump_json())  # type: ignore[attr-defined]
    chosen = {value["type"] for value in used.values() if isinstance(value, dict) and "type" in value}
    alone, named = (
        run_of(kind, {"algorithm": algorithm}),
        run_of(kind, {"algorithm": algorithm, "also": sorted(chosen)}),
    )
    assert alone == named, differences({"files": alone, "packages": {}}, {"files": named, "packages": {}})


def test_a_run_has_the_surrogate_that_it_names_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    folder = "posttrain/algorithms/surrogates"
    grpo, sapo = (run_of("online", {"algorithm": name}) for name in ("grpo", "sapo"))
    assert f"{folder}/sapo.py" not in grpo and f"{folder}/sapo.py" in sapo
    assert "posttrain/rewards/learned.py" not in grpo
    assert "posttrain/rewards/learned.py" in run_of("online", {"algorithm": "grpo", "reward": {"model": 1.0}})
    assert not any(file.startswith(("posttrain/measure/", "posttrain/report/")) for file in grpo)


def test_a_run_that_judges_a_mixture_has_the_code_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parts = {"a": {"task": "sums"}, "b": {"task": "two_step"}}
    tasks = {"mixed": {"task": "mixture", "parts": parts}, "other": {"task": "two_step"}}
    settings = {"data": {"tasks": tasks}, "online": {"runs": {"run": {"algorithm": "grpo", "data": "mixed/prompts"}}}}
    files = library().code("online@run", settings)["files"]
    assert {f"posttrain/tasks/{name}.py" for name in ("mixture", "arithmetic/task", "two_step/task")} <= files.keys()
    other = {**settings, "online": {"runs": {"run": {"algorithm": "grpo", "data": "other/prompts"}}}}
    assert not any("arithmetic" in file or "mixture" in file for file in library().code("online@run", other)["files"])


def test_a_users_module_counts_with_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/mine.py").write_text("from shared import half\n")
    (tmp_path / "custom/shared.py").write_text("half = 0.5\n")
    (tmp_path / "custom/other.py").write_text("")
    (tmp_path / "params.yaml").write_text("online: {runs: {run: {algorithm: grpo, reward: {'mine:score': 1.0}}}}\n")
    monkeypatch.chdir(tmp_path)
    files = Library().code("online@run", read_yaml(PARAMS_FILE))["files"]
    assert {file for file in files if file.startswith("custom/")} == {"custom/mine.py", "custom/shared.py"}
