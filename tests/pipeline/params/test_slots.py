"""Slots: settings that name a model, a table or rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from posttrain.errors import ParamsError
from posttrain.pipeline.params.slots import (
    model_of,
    model_slot,
    needed_model,
    rollouts_slot,
    slots,
    table_of,
    table_slot,
)


class Run(BaseModel):
    start: str = model_slot("the model", optional=True)
    data: str = table_slot("chat", "corpus", description="the table")
    rows: str = rollouts_slot("the rollouts")
    other: int = 1


def test_slots() -> None:
    found = slots(Run)
    assert found["start"] == {"slot": "model", "optional": True, "scores": False, "sets": False}
    assert found["data"] == {"slot": "table", "kinds": ["chat", "corpus"], "optional": False}
    assert found["rows"] == {"slot": "rollouts", "optional": False} and set(found) == {"start", "data", "rows"}


@pytest.mark.parametrize(
    ("start", "data", "rows", "right"),
    [
        ("sft/main", "mine/chat", "online/grpo", True),
        ("../a", "mine/chat", "online/grpo", False),
        ("sft/main", "mine/prompts", "online/grpo", False),
        ("sft/main", "mine/chat", "sft/grpo", False),
    ],
)
def test_patterns(start: str, data: str, rows: str, right: bool) -> None:
    given = {"start": start, "data": data, "rows": rows}
    if right:
        assert Run(**given).start == start  # type: ignore[arg-type]
    else:
        with pytest.raises(ValidationError):
            Run(**given)  # type: ignore[arg-type]


def test_what_a_slot_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_of("none", "a") is None and table_of("none") is None
    assert needed_model("sft/main", "a") == model_of("sft/main", "a") == Path("models/sft/main")
    assert table_of("mine/chat") == Path("data/mine/chat.parquet")
    with pytest.raises(ParamsError, match="a = none"):
        needed_model("none", "a")
    Path("models").mkdir()
    Path("models/out").symlink_to("/etc")
    with pytest.raises(ParamsError, match="a = 'out' is outside models/"):
        model_of("out", "a")
