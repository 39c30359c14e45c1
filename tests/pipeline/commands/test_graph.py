"""`posttrain graph`, on the repository's own params.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import parse, run
from tests.workspace import ROOT


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_miniature_as_text() -> None:
    lines = run(parse(["graph"])).splitlines()
    assert lines[0] == "data_tasks@two_step" and "│  ├─ online@grpo" in "\n".join(lines)
    assert next(line for line in lines if "completions@base" in line).startswith("   └─"), "below its own model"
    assert not any("code" in line for line in lines)


def test_the_same_as_json_and_as_a_picture(tmp_path: Path) -> None:
    data = json.loads(run(parse(["graph", "--json"])))
    assert data["starts"]["preference@dpo"] == "sft@main" and "data_samples@compared" in data["stages"]["reward@main"]
    assert run(parse(["graph", "--svg", str(tmp_path / "g.svg")])) == f"wrote {tmp_path / 'g.svg'}"
    assert (tmp_path / "g.svg").read_text().startswith("<svg ")


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"g.png' does not end in \.svg\. Name it .*g\.svg"):
        run(parse(["graph", "--svg", str(tmp_path / "g.png")]))
    assert not list(tmp_path.iterdir())
