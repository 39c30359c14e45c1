"""The table of `posttrain plan`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from posttrain.errors import ParamsError
from posttrain.files import write_json
from posttrain.measure.phases import NAMES, OTHER
from posttrain.measure.timings import timings_path
from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.commands.plan import table as module
from posttrain.pipeline.commands.plan.memory_estimate import Demand
from posttrain.pipeline.commands.plan.table import COLUMNS, plan


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "base": {
            "scratch": {"new": {"data": "d/corpus", "shape": {"layers": 1, "width": 32, "heads": 2}}},
            "hub": {"far": {"name": "Qwen/Qwen3-0.6B", "revision": "0" * 40}},
        },
        "sft": {"runs": {"far": {"start": "base/far", "data": "d/chat"}}},
        "external": {"runs": {"own": {"start": "base/new", "script": "a", "command": "a", "data": "none"}}},
    }  # fmt: skip
    Path("params.yaml").write_text(yaml.safe_dump({"format": 2, **settings}))


def test_every_stage_has_a_row_or_a_reason() -> None:
    lines = plan([], None, 64).splitlines()
    assert [title in lines[0] for title in COLUMNS] == [True] * len(COLUMNS)
    assert lines[1].startswith("base_scratch@new") and " unknown " in lines[1]
    assert lines[2].startswith("sft@far: models/base/far: it has no config.json yet")
    assert lines[3] == "external@own: the memory of your own trainer is not known here"
    assert "with prompts of 64 tokens (--prompt N)" in lines[-1] and "of N processes" not in "\n".join(lines)
    assert plan(["external"], None, 64) == lines[3] and run(parse(["plan", "external@own"])) == lines[3]


def test_what_cannot_be_planned() -> None:
    with pytest.raises(ParamsError, match="--prompt = 0"):
        plan([], None, 0)
    with pytest.raises(ParamsError, match="'sft@fra' is not a stage that trains or samples"):
        plan(["sft@fra"], None, 64)


def test_cells() -> None:
    found = Demand(
        1e9, {"weights": 1e9, "masters": 1e9, "moments": 0.0}, {"gradients": 3e9}, {"decoding": 1e9}, checkpoints=5e9
    )
    row = module._row("sft@a", found)
    assert row == ("sft@a", "5 GB (!)", "unknown", "2 GB", "-", "3 GB", "-", "1 GB", "-", "-", "5 GB")
    many = Demand(9e9, {"weights": 1e9}, processes=4, in_one_memory=4)
    assert module._row("sft@a", many)[1] == "1 GB, each of 4 processes"
    once = Demand(9e9, {"weights": 1e9}, processes=4, once=1e9)
    assert module._row("sft@a", once)[1] == "1 GB, the first of 4 processes"
    assert module._size(0.0) == "-" and module._size(2e9) == "2 GB"
    write_json(
        timings_path("sft@a"),
        {"stage": "sft@a", "total": 1234.4, "peak_mb": 1.0, "seconds": dict.fromkeys((*NAMES, OTHER), 0.0)},
    )
    assert module._seconds("sft@a") == "1,234 s" and module._seconds("sft@b") == "unknown"
