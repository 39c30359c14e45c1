"""What of a Python file counts for staleness, and which rows of tables a run names."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from posttrain.algorithms.distillation import DISTILL_ROWS
from posttrain.errors import PipelineError
from posttrain.measure.provenance import code_differences
from posttrain.pipeline.lock import code_manifest
from posttrain.pipeline.lock.accept import changes
from posttrain.pipeline.lock.code_digest import normalised, outlined
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.lock.inputs import watch_code
from posttrain.pipeline.lock.reasons import accepted_code
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.runs.distill import DISTILL
from posttrain.pipeline.runs.online import ONLINE
from posttrain.pipeline.runs.preference import PREFERENCE
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings import listing
from posttrain.settings.listing import listed_modules, row_modules
from tests.architecture.sources import ROOT, modules
from tests.distributions import install

TOY_TASKS = "posttrain/pipeline/toy_tasks"
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


def test_a_file_says_its_rows_and_the_rows_that_they_name(tmp_path: Path) -> None:
    file = tmp_path / "rows.py"
    file.write_text('ROWS = {"a": Row(1, {"é": "b"}), "b": Row(2)}\nOTHER = {name: 1}\nSUMS: int = {"c": 1}\n')
    found = outlined(file, "")
    assert found.rows == {"ROWS": {"a": ["b", "é"], "b": []}, "SUMS": {"c": []}} and found.names == ["c"]


def test_a_listing_imports_none_of_its_modules(tmp_path: Path) -> None:
    file = tmp_path / "table.py"
    file.write_text('TASKS = Listing("posttrain.tasks", "TASKS")\nNAMED = "posttrain.errors"\nx = TASKS["two_step"]\n')
    found = outlined(file, "")
    assert found.listings == [["posttrain.tasks", "TASKS"]]
    assert found.imports == ["posttrain.errors"] and found.names == ["two_step"]


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"a\.py line 2: this is not valid Python"):
        digest(tmp_path, "x = 1\ndef f(:\n")


@pytest.mark.slow
def test_no_name_is_in_two_files_of_a_listing() -> None:
    listings = [listing for file in modules().values() for listing in outlined(file, "").listings]
    places = {listing[0] for listing in listings}
    assert places >= {"posttrain.algorithms.policy", "posttrain.rewards", "posttrain.tasks"}
    for place, table, *_ in filter(lambda listing: listing[0], listings):
        names = [name for module in listed_modules(place) for name in row_modules(module, table)]
        assert names or place == "posttrain.tasks", "the tasks of posttrain are plugins"
        assert len(names) == len(set(names)), (place, table)
        assert list(row_modules(place, table)) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file", "text"),
    [
        ("online", "posttrain/algorithms/policy/new_idea.py", 'SURROGATES = {"new_idea": 1}\nROWS = {"new_idea": 2}\n'),
        ("preference", "posttrain/algorithms/preference/new_idea.py", 'LOSSES = {"new_idea": 1}\n'),
        ("online", "posttrain/rewards/square.py", 'REWARDS = {"square": 1}\n'),  # a power in answers/
        ("online", "posttrain/rewards/new_reward.py", 'REWARDS = {"new_reward": 1}\n'),
        ("online", "posttrain/tasks/new_task.py", 'TASKS = {"new_task": 1}\n'),
    ],
)
def test_a_new_file_of_a_listing_changes_no_run(
    kind: str, file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("posttrain", "stages"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_manifest, "LIBRARY", tmp_path)
    monkeypatch.setattr(code_manifest, "LOADED", (tmp_path / "posttrain", tmp_path / "stages"))
    monkeypatch.setattr(listing, "LIBRARY", tmp_path)
    settings = {kind: {"runs": {"run": {"algorithm": "grpo" if kind == "online" else "dpo"}}}}
    before = Library().code(f"{kind}@run", settings)
    (tmp_path / file).write_text(text)
    assert Library().code(f"{kind}@run", settings) == before
    named = {kind: {"runs": {"run": {**settings[kind]["runs"]["run"], "also": Path(file).stem}}}}
    assert Library().code(f"{kind}@run", named)["files"].keys() - before["files"].keys() == {file}


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
        *(("distill", name) for name in DISTILL_ROWS),
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
    assert alone == named, code_differences({"files": alone, "packages": {}}, {"files": named, "packages": {}})


def test_a_run_has_the_surrogate_that_it_names_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    folder = "posttrain/algorithms/policy"
    grpo, sapo = (run_of("online", {"algorithm": name}) for name in ("grpo", "sapo"))
    assert f"{folder}/sapo.py" not in grpo and f"{folder}/sapo.py" in sapo
    assert "posttrain/rewards/learned.py" not in grpo
    assert "posttrain/rewards/learned.py" in run_of("online", {"algorithm": "grpo", "reward": {"model": 1.0}})
    assert not any(file.startswith(("posttrain/measure/", "posttrain/pipeline/report/")) for file in grpo)


def test_a_run_that_judges_a_mixture_has_the_code_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    parts = {"a": {"task": "sums"}, "b": {"task": "two_step"}}
    tasks = {"mixed": {"task": "mixture", "parts": parts}, "other": {"task": "two_step"}}
    settings = {"data": {"tasks": tasks}, "online": {"runs": {"run": {"algorithm": "grpo", "data": "mixed/prompts"}}}}
    files = library().code("online@run", settings)["files"]
    assert {f"{TOY_TASKS}/{name}.py" for name in ("mixture", "arithmetic/task", "two_step/task")} <= files.keys()
    other = {**settings, "online": {"runs": {"run": {"algorithm": "grpo", "data": "other/prompts"}}}}
    assert not any("arithmetic" in file or "mixture" in file for file in library().code("online@run", other)["files"])


@pytest.mark.slow
def test_a_users_module_counts_with_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/mine.py").write_text("from shared import half\n")
    (tmp_path / "custom/shared.py").write_text("half = 0.5\n")
    (tmp_path / "custom/other.py").write_text("")
    (tmp_path / "params.yaml").write_text("online: {runs: {run: {algorithm: grpo, reward: {'mine:score': 1.0}}}}\n")
    monkeypatch.chdir(tmp_path)
    files = Library().code("online@run", read_yaml(PARAMS_FILE))["files"]
    assert {file for file in files if file.startswith("custom/")} == {"custom/mine.py", "custom/shared.py"}


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"seed": "0"}), ({"seed": "0"}, {}), ({"seed": "0"}, {"seed": "1"})]
)
def test_an_accepted_change_of_the_shared_seed_is_part_of_the_code(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """A run's code has `settings` only where it takes the seed of all runs."""
    old, new = (
        {"files": {"a.py": "1"}, "packages": {}, **({"settings": seed} if seed else {})} for seed in (before, after)
    )
    record = {"code": old, "accepted": [{"reason": "the same", "changed": changes(old, new)}]}
    found = accepted_code(record)
    assert found is not None and code_differences(found, new) == []


def test_a_link_of_an_editor_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom").mkdir()
    Path("custom/.#rewards.py").symlink_to("someone@somewhere.1234:5678")  # Emacs: unsaved changes
    watch_code()


SHOUT = "from posttrain.rewards import rule\n\n\n@rule()\ndef shout(rollout, options):\n    return 1.0\n"


def test_a_plugin_of_another_distribution_counts_with_version_and_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    plain, named = ({"algorithm": "grpo", "reward": {"length": 1.0, **more}} for more in ({}, {"shout": 1.0}))

    def code(settings: dict[str, Any]) -> dict[str, dict[str, str]]:
        return Library().code("online@run", {"online": {"runs": {"run": settings}}})

    before = code(plain)
    site = install(monkeypatch, tmp_path, "shout-reward", {"rewards shout": "shout"}, SHOUT)
    assert code(plain) == before  # it is installed, and the run does not name it
    first = code(named)["packages"]["shout-reward"]
    assert re.fullmatch(r"1\.0 sha256:[0-9a-f]{16}", first)
    (site / "shout_reward.py").write_text(SHOUT.replace("1.0", "0.5"))
    assert code(named)["packages"]["shout-reward"] != first
    assert code_differences(code(plain), code(named)) == [
        f"shout-reward not used -> {code(named)['packages']['shout-reward']}"
    ]


def test_a_plugin_of_ours_counts_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point names a mapping of the library: the row's own texts name other rows."""
    monkeypatch.chdir(ROOT)
    install(monkeypatch, tmp_path, "as-if-ours", {}, "")
    about = next(tmp_path.glob("site-*/*.dist-info")) / "entry_points.txt"
    about.write_text("[posttrain.tasks]\nmoved = posttrain.laws.cases:MOVED\n")
    library.cache_clear()
    files = run_of("online", {"algorithm": "grpo", "task": "moved"})
    assert "posttrain/laws/cases.py" in files
    assert "posttrain/laws/cases.py" not in run_of("online", {"algorithm": "grpo"})
    library.cache_clear()
