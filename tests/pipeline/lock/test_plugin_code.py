"""The files of other distributions' plugins, and their digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from posttrain.pipeline.lock import plugin_code
from posttrain.pipeline.lock.plugin_code import is_plugin_version, plugin_files, plugin_version
from posttrain.settings.plugins import Plugin
from tests.distributions import install

HELLO = Plugin("trackers", "hello", "hello_plugin:HELLO", "hello-plugin", "1.0")
LOST = Plugin("trackers", "lost", "no_such_module:LOST", "no-such-plugin", "1.0")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(monkeypatch, tmp_path, "hello-plugin", {"trackers hello": "HELLO"}, "HELLO = 1") / "hello_plugin.py"


def test_the_files_of_a_distribution(file: Path) -> None:
    assert plugin_files(HELLO) == [file]
    assert plugin_code._module_files(HELLO) == plugin_code._listed_files(HELLO) == {"hello_plugin.py": file}
    assert plugin_files(LOST) == [] and plugin_code._module_files(LOST) == plugin_code._listed_files(LOST) == {}


def test_a_version_has_the_digest_of_the_files(file: Path) -> None:
    line = f"hello_plugin.py {hashlib.sha256(b'HELLO = 1').hexdigest()}\n"
    assert plugin_version(HELLO) == f"1.0 sha256:{hashlib.sha256(line.encode()).hexdigest()[:16]}"
    assert is_plugin_version(plugin_version(HELLO)) is True and is_plugin_version("1.0") is False
    before = plugin_version(HELLO)
    file.write_text("HELLO = 2")
    assert plugin_version(HELLO) != before


def test_the_files_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "wide_plugin"
    (package / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "words.txt", "__pycache__/a.pyc"):
        (package / name).touch()
    monkeypatch.syspath_prepend(str(package.parent))
    found = plugin_code._module_files(Plugin("trackers", "a", "wide_plugin.sub:A", "wide-plugin", "1.0"))
    assert found == {f"wide_plugin/{name}": package / name for name in ("__init__.py", "words.txt")}


def test_what_installers_write_does_not_count() -> None:
    assert plugin_code._counts(("hello", "a.py")) is True
    for parts in (("hello-1.0.dist-info", "RECORD"), ("hello", "__pycache__", "a.pyc"), ("..", "bin", "hello")):
        assert plugin_code._counts(parts) is False
