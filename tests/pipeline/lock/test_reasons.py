"""Why a stage must run, as dvc.lock, params.yaml, dvc.yaml and the files say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from posttrain.measure.record import PYTHON
from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.lock.reasons import ALTERED, DuringRun, Reasons, accepted_code, code_changes
from tests.pipeline.lock.project import CODE, DVC_YAML, FILES, RECORD, md5, put, put_lock

NAMES = ("raw", "mine@main", "last")


def reasons() -> dict[str, tuple[str, ...]]:
    found = Reasons()
    return {name: why for name in NAMES if (why := found.of(name))}


def test_a_project_that_has_run_is_current(made: Path) -> None:
    found = Reasons()
    assert [found.of(name) for name in NAMES] == [(), (), ()] and found.of("code") == ()
    assert found.to_run([]) == [] and found.changes("raw") is False
    assert found.to_run(["mine@main"]) == ["mine@main", "last"]


LR = "mine: {runs: {main: {lr: 0.2, name: a}}}\n"
UNKNOWN = "dvc.yaml names x, which params.yaml lacks"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("params.yaml", LR, {"mine@main": ("params mine.runs.main.lr 0.1 -> 0.2",)}),
        ("data/raw.txt", "edited", {"raw": (ALTERED.format("data/raw.txt"),)}),
        ("dvc.yaml", DVC_YAML.replace("make last", "make it"), {"last": ("its command changed",)}),
        ("dvc.yaml", f"{DVC_YAML}    always_changed: true\n", {"last": ("it always runs",)}),
        ("dvc.yaml", DVC_YAML.replace("[models/mine]", "[models/mine, params.yaml]"), {"last": ("params.yaml new",)}),
        ("dvc.yaml", DVC_YAML.replace("[data/raw.txt]", "[data/raw.txt, b]", 1), {"raw": ("b is a new output",)}),
        ("dvc.yaml", DVC_YAML.replace("make last", "make ${x}"), {"last": (UNKNOWN,)}),
        ("dvc.yaml", f"{DVC_YAML.replace('make last', 'make it')}    frozen: true\n", {}),
    ],
)  # fmt: skip
def test_a_change_is_named(made: Path, file: str, text: str, expected: dict[str, tuple[str, ...]]) -> None:
    put(made / file, text)
    assert reasons() == expected


def test_changed_entries_of_the_lock_are_named(made: Path) -> None:
    stages = read_lock(made)
    stages["raw"]["outs"][0]["md5"] = md5("other")
    del stages["last"]
    put_lock(made, stages)
    found = reasons()
    assert found["last"] == ("never ran",)
    assert found["raw"] == (ALTERED.format("data/raw.txt"),)
    assert found["mine@main"] == ("data/raw.txt modified",)
    stages["mine@main"]["params"]["params.yaml"]["mine.runs.main"]["lr"] = 0.3
    put_lock(made, stages)
    assert reasons()["mine@main"][-1] == (
        "dvc.lock does not say what ran: params.yaml: mine.runs.main.lr 0.3 (the run had 0.1). "
        "Run `posttrain repair`, then `dvc repro`"
    )


def test_files_that_are_missing_are_named(made: Path) -> None:
    RECORD.unlink()
    (made / "last.txt").unlink()
    missing = f"its output {RECORD} is missing, so the run is not verified: `dvc pull {RECORD}`"
    assert reasons() == {"mine@main": (missing,), "last": ("its output last.txt is missing",)}
    found = Reasons()
    assert found.changes("mine@main") is False and found.below("mine@main") == []
    assert found.to_run([]) == ["mine@main", "last"]


def test_a_stage_without_any_output_ran_elsewhere(made: Path) -> None:
    RECORD.unlink()
    assert not Reasons().is_absent("mine@main"), "its model is there"
    shutil.rmtree(made / "models/mine/main")
    assert Reasons().is_absent("mine@main") and not Reasons().is_absent("raw")
    (made / "last.txt").unlink()
    assert not Reasons().is_absent("last"), "git carries its output"
    put(made / "params.yaml", FILES["params.yaml"].replace("0.1", "0.2"))
    assert not Reasons().is_absent("mine@main"), "it has to run again anyway"


def test_what_is_below_a_changed_stage_runs_too(made: Path) -> None:
    put(made / "dvc.yaml", DVC_YAML.replace("make raw", "make it"))
    found = Reasons()
    assert found.changes("raw") is True
    assert found.below("raw") == ["last", "mine@main"]
    assert found.to_run([]) == ["raw", "mine@main", "last"]


def test_a_dependency_that_no_stage_makes(made: Path) -> None:
    put(made / "mine.txt", "a")
    put(made / "dvc.yaml", DVC_YAML.replace("cmd: make raw", "cmd: make raw\n    deps: [mine.txt]"))
    stages = read_lock(made)
    stages["raw"]["deps"] = [{"path": "mine.txt", "md5": md5("a")}]
    put_lock(made, stages)
    assert reasons() == {}
    put(made / "mine.txt", "b")
    assert reasons()["raw"] == ("mine.txt modified",)
    (made / "mine.txt").unlink()
    assert reasons()["raw"] == ("mine.txt deleted",)


def test_code_counts_as_it_will_be_once_it_is_written(made: Path) -> None:
    put(made / "code/mine/main.json", json.dumps({**CODE, "files": {"posttrain/gone.py": "1"}}))
    assert reasons() == {}, "the stage `code` will write what the run had"
    stages = read_lock(made)
    stages["mine@main"]["deps"][0]["md5"] = md5("other")
    put_lock(made, stages)
    assert reasons()["mine@main"][0] == "its code changed"
    RECORD.write_text(json.dumps({"code": {"files": {}, "packages": {"python": "3.1"}}}))
    assert reasons()["mine@main"][0] == f"python 3.1 -> {PYTHON}"


def test_during_a_run_only_inputs_and_missing_outputs_count(made: Path) -> None:
    put(made / "last.txt", "edited")
    found = DuringRun()
    assert [found.of(name) for name in NAMES] == [(), (), ()]
    put(made / "code/mine/main.json", "{}")
    (made / "last.txt").unlink()
    found = DuringRun()
    assert found.of("mine@main") == ("the code of mine@main changed",)
    assert found.of("last") == ("its output last.txt is missing",)


def test_accepted_changes_belong_to_the_code_of_a_result() -> None:
    used = {"files": {"a.py": "1", "b.py": "1"}, "packages": {}}
    changed = {"files": {"a.py": ["1", "2"], "b.py": ["1", None]}, "settings": {"seed": [None, "3"]}}
    assert accepted_code({}) is None
    assert accepted_code({"code": used}) == used
    accepted = accepted_code({"code": used, "accepted": [{"reason": "r", "changed": changed}]})
    assert accepted == {"files": {"a.py": "2"}, "packages": {}, "settings": {"seed": "3"}}


def test_changes_of_the_code(made: Path) -> None:
    assert code_changes("mine@main", None) == ["its code changed"]
    assert code_changes("mine@main", CODE) == ["its code changed"]
    assert code_changes("other@main", CODE) == ["its code changed"]
    new = {"files": {"posttrain/a.py": "1"}, "packages": {"python": "2"}}
    assert code_changes("mine@main", new) == ["posttrain/a.py is used now", f"python {PYTHON} -> 2"]


def test_many_changes_are_counted(made: Path) -> None:
    more = ", ".join(f"k{number}: 1" for number in range(7))
    put(made / "params.yaml", f"mine: {{runs: {{main: {{lr: 0.1, name: a, {more}}}}}}}\n")
    (line,) = reasons()["mine@main"]
    assert line.startswith("params mine.runs.main.k0 not set -> 1, ") and line.endswith("k5 not set -> 1 and 1 more")
