"""Stages and flows by name, and where their code lies."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.isolation.library import LIBRARY
from posttrain.pipeline.by_name import flow, flows_package, is_sweep, place_of, run_flow, stage


def test_place_of() -> None:
    assert place_of(LIBRARY / "posttrain/errors.py") == LIBRARY / "posttrain/errors.py"
    toy = LIBRARY / "posttrain/pipeline/toy_tasks/mixture.py"
    assert place_of(toy) == toy and place_of(LIBRARY / "tests/conftest.py") is None


def test_modules() -> None:
    assert stage("code").__name__ == "stages.code" and flow("labels").__name__ == "flows.labels"


def test_flows_of_the_checkout_and_of_a_project(tmp_path: Path) -> None:
    assert flows_package(LIBRARY) == "flows" and flows_package(tmp_path) == "posttrain.pipeline.flows"


def test_is_sweep() -> None:
    assert is_sweep(["python", "-m", "flows.sweep"]) and is_sweep(["/a/posttrain", "sweep", "start"])
    assert not is_sweep(["posttrain", "plan"]) and not is_sweep(["sweep"])


def test_a_flow_ends_the_process_with_its_code() -> None:
    module: Any = SimpleNamespace(run=lambda arguments: 3)
    with pytest.raises(SystemExit) as ended:
        run_flow(module, Namespace(json=False, command="flow"))
    assert ended.value.code == 3
    with pytest.raises(ParamsError, match=r"`posttrain deploy` does not print JSON\. Remove it"):
        run_flow(module, Namespace(json=True, command="deploy"))
    with pytest.raises(ParamsError, match="Add `--plan`"):
        run_flow(module, Namespace(json=True, command="sweep"))
