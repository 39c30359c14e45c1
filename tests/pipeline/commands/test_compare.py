"""`posttrain compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.commands import compare as module
from posttrain.pipeline.commands.line import Document, parse, run
from posttrain.pipeline.compare.comparison import compare
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.text import as_text
from posttrain.pipeline.tables.store import write_table
from tests.pipeline.report import workspace
from tests.workspace import ROOT


@pytest.fixture(autouse=True)
def graph(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", finished / "dvc.yaml")


def test_policies_are_compared_as_text_json_or_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(select(["sft", "dpo"], None, "sampled", [], None), None)
    text, plain = run(parse(["compare", "sft", "dpo"])), as_text(found, "sampled", "").splitlines()
    assert set(plain) <= set(text.splitlines()), "and a note that they are not current"
    document = module.run(parse(["compare", "sft", "dpo", "--json"]))
    assert isinstance(document, Document) and [one["label"] for one in json.loads(document)["settings"]]
    assert run(parse(["compare", "sft", "dpo", "--to", "page.html"])) == text
    assert "compare sft dpo" in Path("page.html").read_text()
    assert "page written: page.html" in capsys.readouterr().err
    run(parse(["compare", "sft", "dpo", "--json", "--to", "new/folder/page.html"]))
    assert "page written: new/folder/page.html" in capsys.readouterr().err and Path("new/folder/page.html").is_file()


def test_the_command_is_shown_as_it_was_typed() -> None:
    words = ["compare", "a", "b c", "--policy", "grpo", "--task", "x", "--greedy"]
    assert module._typed(parse(words)) == "compare a 'b c' --policy grpo --task x --greedy"
    assert module._typed(parse(["compare"])) == "compare"
    words = ["compare", "kl", "--factor", "kl", "--factor", "lr", "--against", "none"]
    assert module._typed(parse(words)) == "compare kl --factor kl --factor lr --against none"


def test_results_that_are_not_current_are_noted() -> None:
    assert module._not_current({}) == {}
    (line,) = module._not_current({"sft": "sft"}).values()
    assert line.startswith("sft: its results are not current (out of date: ")
    (line,) = module._not_current({"sft": "workspace"}).values()
    assert line.startswith("workspace: its results are not current (out of date: "), "as the table names it"


def test_tokens_are_compared_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParamsError, match="--greedy is not read with --tokens"):
        run(parse(["compare", "sft", "dpo", "--tokens", "--greedy"]))
    with pytest.raises(ParamsError, match="--factor is not read with --tokens"):
        run(parse(["compare", "sft", "dpo", "--tokens", "--factor", "kl"]))


def low_and_high(folder: Path) -> None:
    """Runs of GRPO with three seeds: low has a KL of 0.02 and gets more prompts right than high, with 0.5."""
    rng, names = np.random.default_rng(2), [f"{side}_{seed}" for side in ("low", "high") for seed in (1, 2, 3)]
    beta = {"low": 0.02, "high": 0.5}
    runs = {name: {"algorithm": "grpo", "seed": int(name[-1]), "kl": {"beta": beta[name[:-2]]}} for name in names}
    data = {"online": {"runs": runs}, "evaluate": {"policies": {name: f"online/{name}" for name in names}}}
    (folder / "params.yaml").write_text(json.dumps(data), encoding="utf-8")
    for name in names:
        rows = workspace.rollouts(name)
        for row in rows:
            row["reward"] = float(rng.random() < (0.9 if name.startswith("low") else 0.3))
            row["scores"] = [{"name": "correct", "value": row["reward"], "status": "ok"}]
        write_table(from_rows(rows, "rollouts"), folder / "results" / name / "rollouts.parquet", "rollouts")


def test_a_planned_question_is_answered_as_text_json_and_on_the_page(finished: Path) -> None:
    low_and_high(finished)
    text = run(parse(["compare", "--factor", "kl", "--against", "0.5", "--to", "page.html"]))
    line = next(line for line in text.splitlines() if line.startswith("beta 0.02 minus beta 0.5 "))
    assert "beta 0.02 is better" in line and line.split()[-2:] == ["3", "3"]
    document = module.run(parse(["compare", "--factor", "beta", "--task", "two_step", "--metric", "correct", "--json"]))
    (question,) = json.loads(document)["questions"]
    assert (question["seeds"], question["pairs"], question["factor"]) == (3, 3, "kl.beta")
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.index("Planned questions") < page.index("All settings") < page.index("Which setting mattered")
    assert "<h1>compare --factor kl --against 0.5</h1>" in page
    with pytest.raises(PipelineError, match=r"no setting 'betta' varies.*Did you mean 'beta'"):
        run(parse(["compare", "--factor", "betta"]))
    with pytest.raises(ParamsError, match="--against was given twice"):
        run(parse(["compare", "--against", "low_1", "--against", "high_1"]))


def test_runs_of_other_kinds_share_no_setting() -> None:
    text = run(parse(["compare", "dpo", "grpo", "--factor", "algorithm"]))
    assert "cannot tell: algorithm and " in text and "vary together" in text
