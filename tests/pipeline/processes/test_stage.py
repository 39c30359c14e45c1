"""How a stage is started by hand and by DVC."""

from __future__ import annotations

import argparse
import contextlib
from types import SimpleNamespace

import psutil
import pytest

import stages.sft
from posttrain.errors import ParamsError
from posttrain.pipeline.processes import stage as module
from posttrain.pipeline.processes.stage import checked_name


def test_a_run_name_is_a_folder_name() -> None:
    assert checked_name("grpo-2_b") == "grpo-2_b"
    for wrong in ("", "-a", "a b", "a/b", "x" * 101):
        with pytest.raises(ParamsError, match="is not a valid name for a run"):
            checked_name(wrong)


def test_the_command_line_of_a_stage() -> None:
    parser = module._parser(stages.sft.main)
    assert parser.prog == "posttrain run sft" and parser.description == stages.sft.__doc__
    assert parser.parse_args([]).profile is False and parser.parse_args(["--profile"]).profile is True


def test_a_profiler_watches_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_PROFILE", raising=False)
    plain, asked = (argparse.Namespace(profile=profile) for profile in (False, True))
    assert isinstance(module._watched("sft@main", plain), contextlib.nullcontext)
    assert not isinstance(module._watched("sft@main", asked), contextlib.nullcontext)
    monkeypatch.setenv("POSTTRAIN_PROFILE", "1")
    assert hasattr(module._watched("sft@main", plain), "__enter__")
    assert not isinstance(module._watched("sft@main", plain), contextlib.nullcontext)


def test_dvc_is_the_nearest_python_above(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["sh", "Python3.12", "dvc", "systemd"]
    above = [SimpleNamespace(name=lambda name=name: name) for name in names]
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(parents=lambda: above))
    assert module._dvc_process() is above[1]
    del above[1]
    assert module._dvc_process() is above[1]
    del above[1]
    assert module._dvc_process() is None
