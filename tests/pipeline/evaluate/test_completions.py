"""`evaluate.settings.completions`: what is kept of prompts and completions, and that all that reads them works."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import ROLLOUT_TEXT, from_rows
from posttrain.errors import DataError
from posttrain.evaluate.completions import SAMPLED_PROMPTS, select_text
from posttrain.evaluate.context import Completions
from posttrain.pipeline.commands.preview.text import preview
from posttrain.pipeline.compare.evaluated import read_evaluated
from posttrain.pipeline.lineage.query import Query
from posttrain.pipeline.lineage.search import in_file
from posttrain.pipeline.report.build import build_report
from posttrain.pipeline.tables.store import read_table, write_table
from stages.completions import main as sample
from stages.evaluate import main
from tests.library.models.tiny import tiny_folder
from tests.pipeline.report import workspace

SECRET = "Is 12 Elm Street hers"
ANSWER = "4417723"
PARAMS = """
format: 2
evaluate:
  settings:
    data: mine/prompts
    reference: none
    reward_model: none
    prompts: 30
    samples: 2
    sampling: {max_tokens: 12}
    reward: {correct: {weight: 1.0, after: null}}
  policies: {start: base/start}
"""


def page_data(folder: Path) -> dict[str, object]:
    text = (folder / "report/report.html").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("completions", "shown"), [("full", 30), ("sampled", SAMPLED_PROMPTS), ("none", 0)])
def test_reports_and_comparisons_have_the_same_figures(finished: Path, completions: Completions, shown: int) -> None:
    assert build_report() == {}
    before, summary = page_data(finished), Path("report/summary.json").read_bytes()
    measured = read_evaluated(finished, "workspace", "grpo", "sampled")

    workspace.rewritten(finished, completions)
    assert build_report() == {}
    after = page_data(finished)
    assert Path("report/summary.json").read_bytes() == summary
    assert after["shown"].pop("with_texts") == shown and before["shown"].pop("with_texts") == 30  # type: ignore[attr-defined]
    assert {**after, "prompts": 0} == {**before, "prompts": 0}, "lengths and lineage too"
    assert len(after["prompts"]) == shown  # type: ignore[arg-type]
    again = read_evaluated(finished, "workspace", "grpo", "sampled")
    assert (again.prompts, again.scores_P.tolist()) == (measured.prompts, measured.scores_P.tolist())
    samples = pl.read_parquet("report/samples.parquet")
    assert samples.height == (shown or 30) and samples["grpo_mean_score"].null_count() == 0
    assert samples["prompt"].null_count() == (0 if shown else 30)


@pytest.mark.slow
def test_the_sample_is_the_same_for_every_policy(finished: Path) -> None:
    workspace.rewritten(finished, "sampled")
    kept = {
        policy: set(rows.filter(pl.col("completion").is_not_null())["prompt_id"])
        for policy in workspace.POLICIES
        for rows in [read_table(finished / f"results/{policy}/rollouts.parquet", "rollouts")]
    }
    assert len(kept["sft"]) == SAMPLED_PROMPTS and all(ids == kept["sft"] for ids in kept.values())


def test_what_is_left_out_has_its_length_and_log_prob() -> None:
    rows = from_rows(workspace.rollouts("sft"), "rollouts")
    none = select_text(rows, "none")
    assert none.select(ROLLOUT_TEXT).null_count().row(0) == (rows.height,) * len(ROLLOUT_TEXT)
    assert none["length"].to_list() == [len(one) for one in rows["logps"]]
    assert none["logp"].to_list() == [sum(one) for one in rows["logps"]]
    assert select_text(rows, "full").equals(rows)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and prompts, before they are evaluated."""
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copytree(tiny_folder(folder / "made"), folder / "models/base/start")
    rows = [
        {
            "split": "test",
            "problem": f"{SECRET}, number {n}?",
            "prompt": [{"role": "user", "content": f"{SECRET}, number {n}?"}],
            "answer": ANSWER if n else f"{SECRET} or not",
            "info": "{}",
            "task": "",
        }
        for n in range(30)
    ]
    write_table(from_rows(rows, "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    return folder


def evaluate(folder: Path, completions: Completions, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    monkeypatch.chdir(folder)
    text = PARAMS.replace("settings:\n", f"settings:\n    completions: {completions}\n")
    (folder / "params.yaml").write_text(text, encoding="utf-8")
    sample("start")
    main("start")
    build_report()
    found: dict[str, float] = json.loads((folder / "results/start/metrics.json").read_bytes())
    return found


@pytest.mark.slow
def test_without_completions_no_file_and_no_line_holds_a_text(
    evaluated: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    figures = evaluate(evaluated, "full", monkeypatch)
    rows = read_table(evaluated / "results/start/rollouts.parquet", "rollouts")
    texts = {one for one in rows["completion"] if len(one) > 6}
    assert texts, "the model wrote something"
    secrets = Query(texts=(SECRET, ANSWER, *texts))
    written = [file for folder in ("results", "report") for file in (evaluated / folder).rglob("*.*")]
    holding = {file.name for file in written if in_file(file, secrets)}
    assert {"rollouts.parquet", "report.html", "samples.parquet"} <= holding
    assert SECRET in capfd.readouterr().err

    assert evaluate(evaluated, "none", monkeypatch) == figures
    assert [file for file in written if in_file(file, secrets)] == []
    printed = "".join(capfd.readouterr())
    assert not [text for text in secrets.texts if text in printed]
    assert "no reward can read 1 of 30 answers" in printed
    with pytest.raises(DataError, match="it has no text"):
        preview(
            "results/start/rollouts.parquet", "base/start", rows=1, style="plain", html=None, turns=None, longest=None
        )


@pytest.mark.slow
def test_an_error_quotes_no_text(evaluated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (evaluated / "custom").mkdir(exist_ok=True)
    (evaluated / "custom/quoting.py").write_text(
        "def quoting(rollouts):\n    raise ValueError(rollouts[0].prompt.messages[-1]['content'])\n"
    )
    monkeypatch.setitem(
        globals(), "PARAMS", PARAMS.replace("correct: {weight: 1.0, after: null}", "quoting:quoting: 1.0")
    )
    with pytest.raises(Exception, match=SECRET):
        evaluate(evaluated, "full", monkeypatch)
    with pytest.raises(Exception, match=re.escape("(evaluate.settings.completions: none)")) as caught:
        evaluate(evaluated, "none", monkeypatch)
    assert SECRET not in str(caught.value) and caught.value.__suppress_context__
