"""Stand-ins for the packages of trackers, which are not installed here: they keep what they are given."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from posttrain.pipeline.track.runs import TrackedRun

RUN = TrackedRun("online/grpo", "0123456789abcdef", {"lr": 0.1, "kl": {"beta": 0.2}}, {"seed": 1})


class Kept:
    """An object whose methods keep their calls, and return what `answers` has under their name."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            return self._answers.get(name)

        return call

    def given(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a method."""
        return [(*given, *named.values()) for called, given, named in self.calls if called == name]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, **modules: dict[str, Any]) -> None:
    """Put modules in the place of others, by names with `__` for dots, and enter a folder."""
    monkeypatch.chdir(folder)
    for name, content in modules.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def plain(**given: Any) -> SimpleNamespace:
    """An object with these attributes."""
    return SimpleNamespace(**given)
