"""The package that a project has pinned."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.package_pin import PINNED, check_installed, describe_package, installed, pinned


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_installed() -> None:
    found = installed()
    assert found["version"] == version("posttrain") and len(found["digest"]) == 64 and installed() == found


def test_pinned() -> None:
    assert pinned() is None
    check_installed()
    PINNED.write_text(json.dumps({**installed(), "more": 1}))
    assert pinned() == {**installed(), "more": 1}
    check_installed()
    PINNED.write_text(json.dumps({"version": "0.1", "digest": "a" * 64}))
    with pytest.raises(PipelineError, match=r"the project uses posttrain 0\.1 \(aaaaaaaaaaaa\)"):
        check_installed()
    PINNED.write_text("{}")
    with pytest.raises(PipelineError, match="the file is damaged"):
        pinned()


def test_describe_package() -> None:
    assert describe_package({"version": "1.2", "digest": "0123456789abcdef"}) == "posttrain 1.2 (0123456789ab)"
