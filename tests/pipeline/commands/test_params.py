"""`posttrain params`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.commands import params as module
from posttrain.pipeline.commands.line import Document, parse
from posttrain.pipeline.commands.params import named_run
from posttrain.pipeline.commands.params.describe import effective
from posttrain.pipeline.commands.params.stored import algorithm_text, section_text
from posttrain.pipeline.metrics.catalog import listed


def said(*words: str) -> str:
    return module.run(parse(["params", *words]))


def test_what_can_be_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        "data: {tasks: {toy: {task: two_step}}}\nsft: {runs: {a: {start: base/b, data: toy/chat}}}\n"
    )
    schema = said("--schema")
    assert isinstance(schema, Document) and json.loads(schema)["type"] == "object"
    assert said("metrics") == listed()
    assert said("algorithms") == algorithm_text(None) and said("grpo") == algorithm_text("grpo")
    assert said("sft") == section_text("sft")
    assert said().startswith(section_text(None))
    found = named_run("sft/a")
    assert found and said("sft/a") == said("sft.runs.a") == effective(*found)
