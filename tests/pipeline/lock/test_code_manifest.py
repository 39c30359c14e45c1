"""The code that a run can load: files with digests, and packages with versions."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from posttrain.errors import PipelineError
from posttrain.isolation.library import LIBRARY
from posttrain.measure.record import PYTHON
from posttrain.pipeline.lock import code_manifest
from posttrain.pipeline.lock.code_digest import Outline, normalised
from posttrain.pipeline.lock.code_manifest import (
    FOLDER,
    Library,
    check_loaded,
    code_path,
    is_current,
    named_files,
    read_code,
    run_names,
    write_code,
)
from tests.distributions import install
from tests.pipeline.lock.project import CODE, put


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with two modules and a template of the user."""
    monkeypatch.chdir(tmp_path)
    put(Path("custom/mine.py"), "import polars\nfrom inner import part\nfrom os import path\n")
    put(Path("custom/inner/__init__.py"), "")
    put(Path("custom/inner/part.py"), "x = 1\n")
    put(Path("custom/chat.jinja"), "{{ x }}")


def test_names_and_paths() -> None:
    assert code_path("online@grpo") == Path("code/online/grpo.json") and code_path("report") == Path("code/report.json")
    settings = {"sft": {"runs": {"a": {}}}, "evaluate": {"policies": {"b": "sft/a"}}}
    assert list(run_names(settings)) == ["sft@a", "completions@b", "evaluate@b", "report"]
    assert code_manifest._prefixes("a.b.c") == ("a", "a.b", "a.b.c")
    assert code_manifest._uncounted("posttrain.measure.record") is True
    assert code_manifest._uncounted("posttrain.errors") is False
    assert code_manifest._file("a.b") == Path("a/b.py")
    assert code_manifest._shown(LIBRARY / "posttrain/errors.py") == "posttrain/errors.py"
    assert code_manifest._shown(Path("custom/a.py")) == "custom/a.py"
    assert code_manifest._is_custom(Path("custom/a.py")) is True
    assert code_manifest._is_custom(LIBRARY) is False and code_manifest._is_custom(None) is False


def test_the_modules_of_a_folder() -> None:
    found = code_manifest._modules(Path("custom"), Path("custom"))
    files = {"mine": "mine.py", "inner": "inner/__init__.py", "inner.part": "inner/part.py"}
    assert found == {name: Path("custom", file) for name, file in files.items()}


def test_files_that_settings_name() -> None:
    assert named_files({"a": {"chat_template": "custom/chat.jinja"}, "b": "custom/mine.py"}) == ["custom/chat.jinja"]
    assert sorted(named_files(["custom/inner"])) == ["custom/inner/__init__.py", "custom/inner/part.py"]
    assert named_files(["custom/none.jinja", "other/chat.jinja"]) == []


def test_versions() -> None:
    found = code_manifest._versions(["torch", "os", "numpy"])
    assert found == {"python": PYTHON, "numpy": version("numpy"), "torch": version("torch")}
    with pytest.raises(PipelineError, match="a run needs the package no-such-package"):
        code_manifest._version("no-such-package")


def test_what_a_module_imports_belongs_to_it() -> None:
    library = Library()
    mine = library._closure(["mine"], set())
    assert {"mine", "inner", "inner.part"} == mine.keys()
    assert library._user_modules(["mine:reward", "posttrain.errors:x", "plain"]) == ["mine"]
    found = library.closure("posttrain.errors")
    assert found["posttrain/errors.py"] == normalised(LIBRARY / "posttrain/errors.py")
    assert library._digests({"inner": library._outline("inner"), "inner.part": library._outline("inner.part")}) == {
        "custom/inner/part.py": normalised(Path("custom/inner/part.py"))
    }


def test_the_code_of_a_run() -> None:
    library = Library()
    assert library.code("theirs@a", {}) == CODE
    assert library.code("theirs@a", {"seed": 1}) == CODE
    assert library.code("report", {})["files"].keys() >= {"posttrain/pipeline/report/build.py", "stages/report.py"}


def test_the_rows_of_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "hello-plugin", {"trackers hello": "HELLO"}, "HELLO = 1")
    library = Library()
    rows = library.rows("", "", "trackers")
    assert rows["hello"] == ("", [])
    assert all(module in ("", "posttrain.plugins.trackers." + name) for name, (module, _) in rows.items())
    listing = ["", "", "trackers"]
    found = library._plugins([listing], {"hello", "mlflow"})
    assert list(found) == ["hello-plugin"] and found["hello-plugin"].startswith("1.0 sha256:")
    used = Outline("", [], ["hello", "other"], [listing], {})
    assert library._used_rows(used) == {"hello"}
    tasks = library.rows("posttrain.pipeline.toy_tasks", "TASKS")
    assert all(module.startswith("posttrain.pipeline.toy_tasks.") for module, _ in tasks.values())


def test_code_is_written_and_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "code", lambda *_: CODE)
    put(Path("params.yaml"), "sft: {runs: {a: {start: base/b}}}\n")
    put(Path("code/sft/old.json"), "{}")
    assert is_current() is False
    assert sorted(write_code()) == [Path("code/report.json"), Path("code/sft/a.json"), Path("code/sft/old.json")]
    assert is_current() is True and write_code() == []
    assert read_code(Path("code/sft/a.json")) == CODE
    put(Path("code/sft/a.json"), "{")
    assert read_code(Path("code/sft/a.json")) is None and is_current() is False
    assert sorted(FOLDER.rglob("*.json")) == [Path("code/report.json"), Path("code/sft/a.json")]


def test_a_module_that_is_not_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str, file: str) -> None:
        put(Path(file), "x = 1\n")
        module = ModuleType(name)
        module.__file__ = str(Path(file).resolve())
        monkeypatch.setitem(sys.modules, name, module)

    monkeypatch.setattr(code_manifest, "PRELOADED", set(sys.modules))
    check_loaded([])
    loaded("late_reward", "custom/late_reward.py")
    check_loaded(["custom/late_reward.py"])
    with pytest.raises(PipelineError, match=r"custom/late_reward\.py: the run imported it, but"):
        check_loaded([])
    loaded("beside", "beside.py")
    with pytest.raises(PipelineError, match=r"beside\.py: a run imported this file"):
        check_loaded(["custom/late_reward.py"])


def test_an_import_from_outside_custom_is_refused() -> None:
    put(Path("beside.py"), "x = 1\n")
    put(Path("custom/wrong.py"), "import os\nimport beside\n")
    with pytest.raises(PipelineError, match=r"custom/wrong\.py line 2: it imports beside\.py"):
        Library().check_own("sft@a", {"sft": {"runs": {"a": {"x": "wrong:f"}}}})


def test_the_report_depends_on_the_styles_and_scripts_of_its_page() -> None:
    """Otherwise `dvc status` would call a page current that an earlier version drew."""
    files = Library().code("report", {})["files"]
    folder = LIBRARY / "posttrain/pipeline/report"
    page_files = {file for file in files if file.endswith((".css", ".html", ".js"))}
    there = {
        file.relative_to(LIBRARY).as_posix() for file in folder.iterdir() if file.suffix in (".css", ".html", ".js")
    }
    assert page_files == there and f"{folder.relative_to(LIBRARY)}/page.css" in there
    assert all(re.fullmatch(r"[0-9a-f]{16}", files[file]) for file in there)
