"""The stages that run, from DVC's own file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from posttrain.pipeline.lock import running as module
from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.lock.running import RWLOCK, running_stages
from tests.pipeline.lock.project import put


def test_running_stages_are_found_by_what_they_write(made: Path) -> None:
    assert running_stages(Pipeline()) == {} and module._written(made) == {}
    held = {str(made / path): {"pid": pid} for path, pid in (("last.txt", os.getpid()), ("data/raw.txt", 2**22 + 1))}
    put(made / RWLOCK, json.dumps({"write": {**held, str(made / "else"): {"pid": os.getpid()}}}))
    assert running_stages(Pipeline()) == {"last": os.getpid()}
    assert module._written(made).keys() == {*held, str(made / "else")}
    put(made / RWLOCK, "{}")
    assert module._written(made) == {}


def test_a_file_that_stays_incomplete_holds_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    put(made / RWLOCK, "{")
    assert module._written(made) == {}
