"""Plugins that code/ and records/ name, compared with those that are installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.isolation.library import LIBRARY
from posttrain.pipeline.lock import code_manifest, plugin_check
from posttrain.pipeline.lock.plugin_check import (
    check_plugins,
    install,
    is_missing,
    lacks_plugins,
    missing_in,
    missing_in_records,
    plugin_lines,
    shown,
)
from posttrain.settings.plugins import every
from tests import distributions
from tests.pipeline.lock.project import put

MADE = "1.2 sha256:0123456789abcdef"
CODE = {"files": {}, "packages": {"python": "3.11", "gone-reward": MADE, "hello-plugin": MADE}}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A workspace next to one installed plugin, which gives two names: one of them is ours too."""
    monkeypatch.chdir(tmp_path)
    points = {"rewards hello": "A", "rewards correct": "A"}
    distributions.install(monkeypatch, tmp_path, "hello-plugin", points, "A = 1")
    monkeypatch.setattr(code_manifest, "LOADED", (LIBRARY / "posttrain/rewards",))  # the whole library takes seconds
    plugin_check._own_names.cache_clear()
    yield
    plugin_check._own_names.cache_clear()


def test_packages_that_are_not_installed() -> None:
    file = Path("code/online/grpo.json")
    assert lacks_plugins() is False and missing_in(file) == {}
    put(file, json.dumps(CODE))
    assert missing_in(file) == {"gone-reward": MADE} and lacks_plugins() is True
    assert is_missing("gone-reward", MADE) is True
    assert is_missing("hello-plugin", MADE) is False and is_missing("gone-reward", "1.2") is False
    with pytest.raises(
        PipelineError, match=r"code/online/grpo\.json: it uses a plugin of the package gone-reward 1\.2"
    ):
        check_plugins("online@grpo")
    check_plugins("sft@main")


def test_records_name_packages_too() -> None:
    assert missing_in_records() == ""
    put(Path("records/sft/a.json"), json.dumps({"code": CODE}))
    put(Path("records/sft/b.json"), json.dumps({"code": 1}))
    put(Path("records/sft/c.json"), "[")
    assert missing_in_records() == (
        "records/sft/a.json uses a plugin of the package gone-reward 1.2, which is not installed. "
        "Install it: python -m pip install gone-reward==1.2"
    )
    named = [plugin_check._named(Path(f"records/sft/{name}.json")) for name in "abc"]
    assert named == [{"gone-reward": MADE, "hello-plugin": MADE}, {}, {}]
    assert plugin_check._code_of_record(Path("records/sft/a.json")) == CODE
    assert plugin_check._code_of_record(Path("records/sft/b.json")) is None
    assert plugin_check._code_of_record(Path("records/sft/c.json")) is None


def test_how_to_install_what_a_run_has_used() -> None:
    assert shown("gone-reward", MADE) == "gone-reward 1.2"
    assert install("gone-reward", MADE) == "Install it: python -m pip install gone-reward==1.2"
    again = "Install it again: python -m pip install --force-reinstall hello-plugin==1.2"
    assert install("hello-plugin", MADE) == again
    assert plugin_check._has_files("hello-plugin") is True and plugin_check._has_files("gone-reward") is False
    assert plugin_check._installed("hello-plugin") is True and plugin_check._installed("gone-reward") is False


def test_what_packages_register_is_listed() -> None:
    lines = [line for line in plugin_lines() if "hello-plugin" in line]
    assert lines == [
        "plugins of hello-plugin 1.0: rewards correct, rewards hello",
        "note: plugin 'correct' of posttrain.rewards of hello-plugin is not used: posttrain has this name itself",
    ]


def test_why_a_name_cannot_be_used(tmp_path: Path) -> None:
    named = {plugin.name: plugin for plugin in every() if plugin.distribution == "hello-plugin"}
    assert plugin_check._fault(named["hello"]) == ""
    (tmp_path / "site-hello-plugin/hello_plugin.py").unlink()
    gone = "plugin 'hello' of posttrain.rewards of hello-plugin is gone. Install it again: "
    assert plugin_check._fault(named["hello"]).startswith(gone)
    assert plugin_check._installed("hello-plugin") is False


def test_our_own_names() -> None:
    assert {"correct", "format", "judge"} <= plugin_check._own_names("rewards")
    assert "hello" not in plugin_check._own_names("rewards")
