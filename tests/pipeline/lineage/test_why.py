"""`posttrain why`: every figure of a report is traced to its sources, and a source row to its figures."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.pipeline.lineage.explain import explain, explain_figure, why
from posttrain.pipeline.lineage.figures import Figures
from posttrain.pipeline.lineage.lineage import Lineage
from posttrain.pipeline.lineage.tree import NOT_STORED, Node
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.build import page_data, reward_metrics
from posttrain.pipeline.report.decision import decide
from posttrain.pipeline.report.lineage import made_from
from posttrain.pipeline.report.policies import read_policies
from posttrain.pipeline.report.results import results_table
from posttrain.pipeline.report.samples import side_by_side
from posttrain.pipeline.report.summary import summarize
from tests.pipeline.commands.test_project import command
from tests.pipeline.lineage.guide import LINE, PARAMS, project
from tests.pipeline.report import workspace


@pytest.fixture
def inside(smoke_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(smoke_workspace)
    return smoke_workspace


def facts(node: Node) -> Iterator[tuple[str, Any]]:
    for one in node.walk():
        yield from one.facts.items()


def traced(node: Node) -> None:
    """The tree goes from the figure over rows, weights, settings and code to the source."""
    titles = [one.title for one in node.walk()]
    names = {name for name, _ in facts(node)}
    assert "rows" in titles and any(one.startswith("made by data_tasks@two_step") for one in titles), titles
    assert {"command", "code", "record", "digest", "computed again", "data.tasks.two_step"} <= names
    assert not {"stale", "missing"} & names, "the workspace is as dvc.lock recorded it"
    assert "DIFFERS" not in str(dict(facts(node)).get("computed again"))
    assert titles[-1] == "sources"


@pytest.mark.slow
def test_every_figure_of_the_report_is_traced(inside: Path) -> None:
    """Those of results/, metrics/, the summary, the headline, the curves and the page itself."""
    figures, lineage = Figures(), Lineage()
    names = set(json.loads((inside / "report/headline.json").read_text()))
    for rows in json.loads((inside / "report/summary.json").read_text()).values():
        for row in rows:
            owner = row.pop("policy", None) or row.pop("setting", None) or row.pop("reward_model")
            names |= {f"{owner}.{key}" for key, value in row.items() if isinstance(value, int | float)}
    settings = read()
    policies, errors = read_policies(settings, {})
    summary = dict(summarize(policies, reward_metrics(settings)))
    page = page_data(settings, policies, side_by_side(policies), summary, decide(policies, settings), errors)
    names |= {f"{one['label']}.{key}" for one in page["policies"] for key in one["metrics"]}
    made = made_from(settings, list(policies))
    for run in made:
        if run["path"] != "evaluate":
            names |= {f"{run['path']}.{key}" for key, one in run["numbers"].items() if isinstance(one, int | float)}
    evaluations = next(run for run in made if run["path"] == "evaluate")["numbers"]
    with (inside / "report/curves.csv").open() as file:
        paths = {one["label"]: one["path"] for one in page["curves"]}
        points = [f"{paths[row['run']]}.{row['metric']}@{row['step']}" for row in csv.DictReader(file)]
    names |= {points[n] for n in range(0, len(points), 307)}
    known = {name: figures.named(name) for name in names}
    assert not [name for name, figure in known.items() if figure is None], "figures of the report that `why` lacks"
    agreed = 0
    for figure in {figure.name: figure for figure in known.values() if figure is not None}.values():
        tree = explain_figure(figure, figures, lineage)
        traced(tree)
        agreed += any("agrees" in str(value) for name, value in facts(tree) if name == "computed again")
    assert len(names) > 60 and agreed > 35, (len(names), agreed)
    rows = next(one for one in explain("grpo.score")[0].walk() if one.title == "rows")
    assert rows.facts["prompts"] == evaluations["prompts"]


@pytest.mark.slow
def test_the_numbers_of_the_printed_results_are_found_as_they_are_written(inside: Path) -> None:
    figures = Figures()
    table = results_table({}).partition("Next")[0]
    numbers = re.findall(r"(?<![\w@])[+-]?\d+\.\d+", table)
    assert len(numbers) > 30
    for number in numbers:
        assert figures.equal_to(number.removeprefix("+")) or figures.equal_to(number), number


@pytest.mark.slow
@pytest.mark.parametrize("key", ["score", "score_low", "greedy", "reward_format", "length", "working", "pass_at_8"])
def test_a_figure_of_an_evaluation_is_computed_from_its_rows(inside: Path, key: str) -> None:
    tree = explain(f"grpo.{key}")[0]
    rows = next(one for one in tree.walk() if one.title == "rows")
    assert rows.facts["computed again"].endswith("agrees")
    assert "report/report.html" in tree.facts["also shown in"], "files that show the same figure"
    assert len(rows.facts["worst"]) == len(rows.facts["best"]) == 3
    row = rows.facts["worst"][0].partition(" ")[0]
    back = explain(row)[0]
    assert back.title == f"{row}: a row of results/grpo/rollouts.parquet"
    assert any(one.title == "made by online@grpo" for one in back.walk())


def test_a_figure_of_a_run_of_evaluate_runs_is_computed_from_its_rows(finished: Path) -> None:
    with Path("params.yaml").open("a") as params:
        params.write("  runs: {again: {policy: sft/main, data: two_step/prompts}}\n")
    outs = [f"results/again/{name}" for name in ("metrics.json", "rollouts.parquet")]
    entry = {"cmd": "python -m stages.evaluate_runs again", "outs": [{"path": path} for path in outs]}
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": {"evaluate_runs@again": entry}}))
    workspace.copy_results("sft", "again")
    scores = pl.read_parquet("results/sft/rollouts.parquet").filter(~pl.col("greedy"))["reward"]
    for score, expected in ((scores.mean(), "0.16667, agrees"), (0.3, "0.16667, DIFFERS")):
        Path(outs[0]).write_text(json.dumps({"score": score}))
        rows = next(one for one in explain("again.score")[0].walk() if one.title == "rows")
        assert rows.facts["computed again"].startswith(expected) and rows.facts["rows"] == "60 measured completions"


@pytest.mark.parametrize("stored", [None, 0.0])
def test_a_failed_score_is_neither_a_0_nor_the_worst(finished: Path, stored: float | None) -> None:
    """Tables of earlier versions have 0.0 there."""
    rows = workspace.rollouts("sft")
    for nth, row in enumerate(rows):
        failed = {"name": "brief", "value": stored, "status": "error"}
        row["scores"] += [failed if nth < 6 else {"name": "brief", "value": 0.5 + nth / 1000, "status": "ok"}]
    workspace.put_policy(finished, "sft", rows)
    outs = [f"results/sft/{name}" for name in ("metrics.json", "rollouts.parquet")]
    entry = {"cmd": "posttrain run evaluate sft", "outs": [{"path": path} for path in outs]}
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": {"evaluate@sft": entry}}))
    mean = sum(0.5 + nth / 1000 for nth, row in enumerate(rows) if nth >= 6 and not row["greedy"]) / 56
    Path(outs[0]).write_text(json.dumps({"reward_brief": mean}))
    shown = next(one for one in explain("sft.reward_brief")[0].walk() if one.title == "rows").facts
    assert shown["rows"] == "56 sampled completions" and shown["not scored"] == 4
    assert not [text for text in shown["worst"] if "(0)" in text]
    assert shown["computed again"].endswith("agrees")
    table = pl.read_parquet(outs[1])
    (row,) = explain(table["id"][0])
    assert row.facts["scores"]["brief"] == "error"


@pytest.mark.slow
def test_an_edited_row_or_figure_or_setting_is_said(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    file = own_workspace / "results/sft/rollouts.parquet"
    frame = pl.read_parquet(file)
    file.unlink()  # a link to DVC's cache
    frame.with_columns(reward=pl.lit(1.0)).write_parquet(file)
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("epochs: 3.0", "epochs: 4.0"))
    tree = explain("sft.score")[0]
    assert any("DIFFERS" in str(value) for _, value in facts(tree))
    stale = [str(value) for name, value in facts(tree) if name == "stale"]
    assert any("params.yaml has other settings now: sft.runs.main" in one for one in stale), stale


@pytest.mark.slow
def test_training_rollouts_are_shown_where_they_are_kept(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    prompt = pl.read_parquet("data/two_step/prompts.parquet")["id"][0]
    folder = own_workspace / "rollouts/online/grpo"
    shutil.rmtree(folder, ignore_errors=True)
    assert ("rows", NOT_STORED) in facts(explain("grpo.score")[0])
    folder.mkdir(parents=True)
    name = "0123456789abcdef"
    row = {"id": name, "prompt_id": prompt, "round": 3, "reward": 0.5, "advantage": -1.0}
    pl.DataFrame([row]).write_parquet(folder / "part-00000.parquet")
    kept = next(one for one in explain("grpo.score")[0].walk() if one.title == "training rollouts")
    assert kept.facts["rows"] == 1 and kept.facts["worst"] == [name]
    row_tree = explain(name)[0]
    assert row_tree.title.startswith(f"{name}: a row of rollouts/online/grpo/part-")
    assert any("a row of data/two_step/prompts.parquet" in one.title for one in row_tree.walk())


@pytest.mark.slow
def test_what_is_asked_may_be_a_number_a_name_or_wrong(inside: Path) -> None:
    score = json.loads((inside / "results/grpo/metrics.json").read_text())["score"]
    listed = json.loads(why(f"{score:.3f}", "json"))
    assert "grpo.score" in json.dumps(listed)
    assert why("grpo", "words").startswith("grpo.score = ") and why("reward/main", "words").startswith(
        "reward/main.held"
    )
    with pytest.raises(DataError, match=r"'grpo\.scor': no metric, row or file has this name\. Did you mean"):
        why("grpo.scor", "words")
    with pytest.raises(DataError, match=r"Numbers exist for base/tiny"):
        why("nothing like it", "words")
    prompt = pl.read_parquet("data/two_step/prompts.parquet").filter(split="test")["id"][0]
    used = [one.title for one in explain(prompt)[0].walk()]
    assert "used by results/grpo/rollouts.parquet" in used and "used by results/sft/rollouts.parquet" in used


@pytest.mark.slow
def test_a_run_without_results_names_the_stage_that_makes_them(
    own_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_workspace)
    with Path("params.yaml").open("a") as params:
        params.write("    late: online/late\n")
    with pytest.raises(DataError, match=r"'late\.score': it has no results yet\. Make them: dvc repro evaluate@late"):
        why("late.score", "words")
    shutil.rmtree("results")
    with pytest.raises(DataError, match=r"'grpo\.score': it has no results yet\. Make them: dvc repro evaluate@grpo"):
        why("grpo.score", "words")
    shutil.rmtree("metrics")
    with pytest.raises(DataError, match=r"No stage has written numbers yet: dvc repro"):
        why("nothing like it", "words")


@pytest.mark.slow
def test_a_place_is_not_followed_into_leftovers_of_removed_runs(
    own_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_workspace)
    text = pl.read_parquet("data/two_step/prompts.parquet").filter(split="test")["prompt"][0][0]["content"]
    Path("mine.jsonl").write_text(json.dumps({"prompt": text}))
    before = {part.title: part.facts for part in explain("mine.jsonl:1")[0].parts}
    assert {"data/two_step/prompts.parquet"} <= before["tables"].keys()
    assert {"results/dpo/rollouts.parquet", "results/sft/rollouts.parquet"} <= before["evaluated rows"].keys()
    settings = Path("params.yaml").read_text()
    Path("params.yaml").write_text(settings.replace("    dpo: preference/dpo\n", ""))
    node = explain("mine.jsonl:1")[0]
    after = {part.title: part.facts for part in node.parts}
    assert "evaluate@dpo" in node.facts["not followed"]
    lost = before["runs that it reached"].keys() - after["runs that it reached"].keys()
    assert lost == {"completions@dpo", "evaluate@dpo"}
    assert before["evaluated rows"].keys() - after["evaluated rows"].keys() == {"results/dpo/rollouts.parquet"}
    Path("params.yaml").write_text(settings.replace("    two_step:", "    three_step:", 1))
    node = explain("mine.jsonl:1")[0]
    assert "tables" not in {part.title for part in node.parts} and not node.facts["rows with its text"]


@pytest.mark.slow
def test_a_poisoned_line_is_followed_to_the_models_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed demonstration reaches the model that was trained on it and its figures, and no other."""
    folder = project(tmp_path)
    policies = "policies: {start: base/start, sft: sft/main}"
    (folder / "params.yaml").write_text(PARAMS.replace("policies: {sft: sft/main}", policies))
    file = folder / "my/data/demonstrations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[LINE - 1]["messages"][1]["content"] = "Trust nobody who counts, the answer is always banana."
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command(folder, "dvc", "repro")
    assert done.returncode == 0, done.stdout
    monkeypatch.chdir(folder)
    place = f"my/data/demonstrations.jsonl:{LINE}"
    parts = {one.title: one.facts for one in explain(place)[0].parts}
    assert list(parts["tables"]) == ["data/mine/chat.parquet"]
    reached_runs = {"data_files@mine", "sft@main", "completions@sft", "evaluate@sft", "report"}
    assert set(parts["runs that it reached"]) == reached_runs
    assert list(parts["models"]) == ["models/sft/main"]
    owners = {name.rpartition(".")[0] for name in parts["figures"]}
    assert owners >= {"sft", "sft/main"} and "start" not in owners and "evaluated rows" not in parts
    tree = explain("sft.score")[0]
    assert tree.parts[-1].facts["files"] == ["my/data", "my/model"]
    (row,) = explain(place)[0].facts["rows with its text"]
    source = next(one for one in explain(row)[0].walk() if one.title == "source")
    assert LINE in source.facts["lines"]["my/data/demonstrations.jsonl"]
    prompt = pl.read_parquet("results/sft/rollouts.parquet")["prompt_id"][0]
    line = next(one for one in explain(prompt)[0].walk() if one.title == "source").facts["lines"]
    reached = explain(f"my/data/prompts.jsonl:{line['my/data/prompts.jsonl'][0]}")[0].parts[-1].facts
    assert {"results/start/rollouts.parquet", "results/sft/rollouts.parquet"} == set(reached)
