"""`posttrain compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import compare as module
from posttrain.pipeline.commands.line import Document, parse, run
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.text import as_text
from tests.workspace import ROOT


@pytest.fixture(autouse=True)
def graph(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", finished / "dvc.yaml")


def test_policies_are_compared_as_text_json_or_a_page() -> None:
    found = compare(select(["sft", "dpo"], None, "sampled", [], None), None)
    text, plain = run(parse(["compare", "sft", "dpo"])), as_text(found, "sampled", "").splitlines()
    assert set(plain) <= set(text.splitlines()), "and a note that they are not current"
    document = module.run(parse(["compare", "sft", "dpo", "--json"]))
    assert isinstance(document, Document) and [one["label"] for one in json.loads(document)["settings"]]
    assert run(parse(["compare", "sft", "dpo", "--to", "page.html"])) == text
    assert "compare sft dpo" in Path("page.html").read_text()


def test_the_command_is_shown_as_it_was_typed() -> None:
    words = ["compare", "a", "b c", "--policy", "grpo", "--task", "x", "--greedy"]
    assert module._typed(parse(words)) == "compare a 'b c' --policy grpo --task x --greedy"
    assert module._typed(parse(["compare"])) == "compare"


def test_results_that_are_not_current_are_noted() -> None:
    assert module._not_current([]) == []
    (line,) = module._not_current(["sft"])
    assert line.startswith("sft: its results are not current (out of date: ")


def test_tokens_are_compared_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParamsError, match="--greedy is not read with --tokens"):
        run(parse(["compare", "sft", "dpo", "--tokens", "--greedy"]))
