"""Which slots of runs name what no run makes."""

from __future__ import annotations

from typing import Any

from posttrain.pipeline.checks.run_graph import RunOutputs
from posttrain.pipeline.runs.sft import SftRun

SETTINGS: dict[str, Any] = {
    "data": {"tasks": {"t": {"task": "sums"}}},
    "sft": {"runs": {"a": {}, "b": {}}},
    "reward": {"runs": {"r": {}}, "sets": {"both": {"one": "reward/r", "two": "reward/r2"}}},
}


def outputs() -> RunOutputs:
    return RunOutputs(SETTINGS, {"sft@gone": ["models/sft/gone"]}, [])


def said(name: str, **kind: Any) -> str:
    return "".join(outputs().fault("sft.runs.x.start", name, **kind))


def test_models_and_tables() -> None:
    found = outputs()
    assert found.models["sft/a"] == "sft.runs.a" and found.tables["t/chat"] == "data.tasks.t"
    clash: list[str] = []
    RunOutputs({"sft": {"runs": {"a": {}}}, "data": {"tasks": {"m": {}}, "files": {"m": {}}}}, {}, clash)
    assert clash == ["data.files.m and data.tasks.m would both make data/m. Rename one of them."]


def test_names_of_models() -> None:
    assert said("sft/a") == "" and said("reward/r", scores=True) == "" and said("reward/r", scores=None) == ""
    assert "no run makes this model. Did you mean 'sft/a'" in said("sft/aa")
    assert "the run that made it was removed or renamed" in said("sft/gone")
    assert ": a reward model generates no text. " in said("reward/r")
    assert ": it gives no scores. " in said("sft/a", scores=True)


def test_names_of_tables() -> None:
    assert said("t/chat", kinds=["chat"]) == ""
    assert "no run makes this table" in said("u/chat", kinds=["chat"])


def test_the_slots_of_a_run() -> None:
    run = SftRun(start="sft/nothing", data="t/chat")
    (line,) = outputs().unknown("sft.runs.x", run)
    assert line.startswith("sft.runs.x.start = 'sft/nothing': no run makes this model.")
