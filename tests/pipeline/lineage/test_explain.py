"""A number is traced to the rows behind it and computed again; a row and a place are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError, PipelineError
from posttrain.pipeline.lineage import explain as module
from posttrain.pipeline.lineage.explain import explain, explain_figure, why
from posttrain.pipeline.lineage.figures import Figure, Figures
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lineage.tree import Node
from tests.pipeline.lineage.made import RESULTS, SOURCE, TABLE, trace


@pytest.fixture
def lineage(finished: Path) -> Lineage:
    trace(finished)
    return Lineage()


def rows(figure: Figure, lineage: Lineage) -> dict[str, Any]:
    node = module._rows(figure, lineage)
    assert node.title == "rows"
    return node.facts


def test_what_is_asked(lineage: Lineage) -> None:
    assert [node.title for node in explain(f"{SOURCE}:1")] == [f"{SOURCE}:1"]
    assert [node.title for node in explain("sft.score")] == ["sft.score = 0.3"]
    row = pl.read_parquet(RESULTS)["id"][0]
    assert [node.title for node in explain(row)] == [f"{row}: a row of {RESULTS}"]
    with pytest.raises(DataError, match="no metric, row or file has this name"):
        explain("no.such")
    Path("dvc.lock").unlink()
    with pytest.raises(PipelineError, match="no run has been recorded"):
        explain("sft.score")


def test_a_number_gives_the_figures_that_are_written_so(lineage: Lineage) -> None:
    (one,) = explain("18484.0")
    assert one.title == "sft/main.tokens = 18484"
    (several,) = explain("0.9000")
    assert several.title == "0.9000: 2 numbers are written so; `why NAME` explains one"
    assert several.facts == {
        name: f"0.9 in results/{name[:3]}/metrics.json" for name in ("sft.reward_format", "dpo.reward_format")
    }


def test_text_and_json(lineage: Lineage) -> None:
    assert why("sft.score", "words").splitlines()[:2] == ["sft.score = 0.3", "  file: results/sft/metrics.json"]
    (tree,) = json.loads(why("sft.score", "json"))
    assert tree["title"] == "sft.score = 0.3" and [part["title"] for part in tree["parts"]] == [
        "rows", "results/sft/metrics.json", "sources",
    ]  # fmt: skip
    assert tree["parts"][-1]["facts"] == {"files": [SOURCE]}


def test_a_figure_that_is_computed_from_others(lineage: Lineage) -> None:
    figures = Figures()
    gain = Figure("dpo", "gain", 0.34, "report/summary.json", "report", ("sft.score", "dpo.score", "gone.score"))
    node = explain_figure(gain, figures, lineage)
    assert node.facts["computed from"] == list(gain.of)
    assert [part.title for part in node.parts] == ["sft.score = 0.3", "dpo.score = 0.64"]
    assert module._generated("evaluate@sft", lineage) == "none: data_files@mine generate the rows from params.yaml"
    assert module._generated("sft@none", lineage) == "none: its stages generate the rows from params.yaml"


def test_rows_of_an_evaluation(lineage: Lineage) -> None:
    table = pl.read_parquet(RESULTS)
    mean = table.filter(~pl.col("greedy"))["reward"].mean()
    facts = rows(Figure("sft", "score", mean, "results/sft/metrics.json", "evaluate@sft"), lineage)
    assert facts["rows"] == "60 sampled completions" and facts["prompts"] == 30
    assert facts["computed again"] == "0.16667, agrees"
    assert [one.endswith("(1)") for one in facts["best"]] == [True] * 3
    greedy = rows(Figure("sft", "greedy", 0.5, "results/sft/metrics.json", "evaluate@sft"), lineage)
    assert greedy["rows"] == "30 greedy completions"
    kl = rows(Figure("sft", "kl_k1", 0.5, "results/sft/metrics.json", "evaluate@sft"), lineage)
    assert kl["computed again"] == "no: KL needs the weights of both models"
    low = rows(Figure("sft", "score_low", 0.5, "results/sft/metrics.json", "evaluate@sft"), lineage)
    assert low["computed again"] == "no: the seed of the interval is not stored"


def test_rows_of_a_training(lineage: Lineage) -> None:
    facts = rows(Figure("sft/main", "heldout_loss", 0.31, "metrics/sft/main.json", "sft@main"), lineage)
    assert facts == {
        TABLE: {"heldout rows": 0, "first": []}, "steps": "not stored",
        "computed again": "no: the scores behind it are not stored",
    }  # fmt: skip
    assert module._read(Figure("sft/main", "loss", 1, "", "sft@main"), lineage)[TABLE] == {"train rows": 0, "first": []}
    point = rows(Figure("online/grpo", "reward@3", 0.05, "plots/online/grpo.csv", "online@grpo"), lineage)
    assert point["rows of the step"] == "not stored" and point["computed again"].startswith("no: points of a curve")
    watched = rows(Figure("online/grpo", "heldout_true@3", 0.05, "plots/online/grpo.csv", "online@grpo"), lineage)
    assert watched["computed again"] == "no: the completions of an evaluation during training are not stored"
    Path("rollouts/online/grpo").mkdir(parents=True)
    figure = Figure("online/grpo", "reward", 0.9, "metrics/online/grpo.json", "online@grpo")
    assert module._of_step(figure) == "rollouts/online/grpo, column step"
    last = rows(figure, lineage)
    assert last["steps"] == "plots/online/grpo.csv" and last["computed again"].split(", ")[1].startswith(
        ("agrees", "DIFF")
    )


def test_rows_that_a_table_has(lineage: Lineage) -> None:
    prompt = pl.read_parquet(TABLE)["id"].to_list()
    counted = module._counted(Figure("data/mine", "prompts_test", 1.0, "", "data_files@mine"))
    assert counted.facts == {"table": TABLE, "first": prompt, "computed again": "1, agrees"}
    assert rows(Figure("data/mine", "prompts_train", 1.0, "", "data_files@mine"), lineage)["computed again"] == (
        "0, DIFFERS: the rows or the number were edited"
    )
    none = module._counted(Figure("data/mine", "samples", 1.0, "", "data_samples@mine"))
    assert none.facts == {"table": "data/mine/", "computed again": "no: the samples behind it are not stored"}


def test_values_of_rows() -> None:
    scores = [[{"name": "a", "value": 0.5, "status": "ok"}], [{"name": "a", "value": 0.0, "status": "error"}], []]
    frame = pl.DataFrame(
        {"id": ["x", "y", "z"], "reward": [1.0, 0.0, 0.5], "scores": scores, "mask": [[True], [True] * 2, []]}
    )
    assert module._score("a", frame).to_list() == [0.5, None, None]
    assert module._values("reward_a", frame).to_list() == [0.5, None, None]
    assert module._values("score", frame).to_list() == [1.0, 0.0, 0.5]
    assert module._named(frame.with_columns(_value=pl.col("reward")).head(2)) == ["x (1)", "y (0)"]


def test_a_value_is_compared_with_its_figure() -> None:
    def said(value: float | None, stage: str = "evaluate@a") -> str:
        node = module._checked(Node("rows"), Figure("a", "b", 0.5, "", stage), value, "it is not stored")
        return str(node.facts["computed again"])

    assert said(None) == "no: it is not stored"
    assert said(0.500001) == "0.5, agrees"
    assert said(0.6) == "0.6, DIFFERS: the rows or the number were edited"
    assert said(float("nan")) == "nan, DIFFERS: the rows or the number were edited"
