"""Python environments of other tools."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from posttrain.isolation.environment import ChildError, _numbers, answer_of, fault, probe, version_fault


def test_a_python_with_the_package() -> None:
    assert fault(sys.executable, ["none-such", "pytest"], "pytest", "1.0+") is None
    assert fault(sys.executable, ["pytest"], "pytest", "999+") == (
        f"{sys.executable} has pytest {version('pytest')}, but posttrain supports 999+"
    )
    assert fault("/no/python", [], "a", "1") == "there is no Python at /no/python"
    false = "/bin/false"
    assert (fault(false, ["pytest"], "pytest", "1") or "").startswith(f"{false} does not work as a Python (")
    command = probe("python", ["pytest"])
    assert command[:2] == ["python", "-c"] and "'pytest'" in command[2] and len(command) == 3


@pytest.mark.parametrize(
    ("found", "wanted", "why"),
    [
        ("0.31.0rc1", "0.30+", None), ("0.30.2", "0.30", None), ("0.4", "0.30+", "but posttrain supports 0.30+"),
        ("0.31", "0.30", "but posttrain supports 0.30"), ("", "0.30", "vllm is missing in the environment of py"),
    ],
)  # fmt: skip
def test_versions(found: str, wanted: str, why: str | None) -> None:
    said = version_fault("py", found, "vllm", wanted)
    assert said is None if why is None else said is not None and said.endswith(why)


def test_numbers_of_a_version() -> None:
    assert _numbers("0.31.0rc1") == [0, 31, 0] and _numbers("2.1+cu130") == [2, 1]


def test_a_function_of_a_file_answers(tmp_path: Path) -> None:
    file = tmp_path / "adds.py"
    file.write_text("def answer(given):\n    return {'sum': given['a'] + given['b']}\n", encoding="utf-8")
    assert answer_of(sys.executable, file, {"a": 2, "b": 3}, os.environ) == {"sum": 5}
    with pytest.raises(ChildError, match="KeyError: 'b'"):
        answer_of(sys.executable, file, {"a": 2}, os.environ)
