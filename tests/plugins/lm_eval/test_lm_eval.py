"""The stage `lm_eval` by lm-eval itself: its numbers next to ours, row by row, and where they are shown."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest

from benchmarks.lm_eval_agreement import agreement, write_project
from posttrain.pipeline.tables.store import read_table, write_table
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT, dvc, run, stage

PYTHON = os.environ.get("POSTTRAIN_LM_EVAL") or str(ROOT / ".venv-lm-eval/bin/python")
pytestmark = [
    pytest.mark.lm_eval,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which(PYTHON) is None, reason="lm-eval's environment is not there: make env-lm-eval"),
]
TOLERANCE = 1e-4
"""Nats between the two forward passes, both in fp32 on a CPU."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one model that both sides have measured on the same rows."""
    place = tmp_path_factory.mktemp("lm-eval")
    workspace = write_project(place, tiny_folder(place / "tiny"))
    os.environ["POSTTRAIN_LM_EVAL"] = PYTHON
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout
    return workspace


def test_the_numbers_are_ours_row_by_row(project: Path) -> None:
    found = agreement(project)
    assert found.options == 240 and found.nats < TOLERANCE
    assert found.same_choice == found.same_text == found.rows == 60
    assert found.acc[0] == pytest.approx(found.acc[1], abs=1e-5) and found.exact[0] == found.exact[1]


def test_figures_are_shown_with_what_they_come_from(project: Path) -> None:
    figures = json.loads((project / "results/lm_eval/start/metrics.json").read_text(encoding="utf-8"))
    assert {"sums_choice.acc", "sums_choice.acc_stderr", "sums_written.exact_match,last_number"} <= figures.keys()
    assert "sums_choice.acc" in dvc(project, "metrics", "show").stdout
    shown = run(project, "python", "-m", "posttrain", "show", "results").stdout
    assert f"sums_choice.acc                            {figures['sums_choice.acc']:.3f} ± " in shown
    assert '"name":"sums_choice.acc"' in (project / "report/report.html").read_text(encoding="utf-8")
    why = run(project, "python", "-m", "posttrain", "why", "lm_eval/start.sums_choice.acc").stdout
    assert "60 documents of sums_choice" in why and f"{figures['sums_choice.acc']:g}, agrees" in why
    assert "made by base_folders@start" in why
    worst = read_table(project / "results/lm_eval/start/documents.parquet", "documents")["id"][0]
    assert "documents.parquet" in run(project, "python", "-m", "posttrain", "where", worst).stdout
    record = json.loads((project / "records/lm_eval/start.json").read_text(encoding="utf-8"))
    assert record["lm_eval"] == "0.4.13" and {"lm_eval_torch", "lm_eval_transformers"} <= record.keys()
    assert "custom/sums/sums.jsonl" in record["code"]["files"]


def test_two_models_are_compared_on_the_same_documents(project: Path) -> None:
    assert stage(project, "lm_eval", "start").returncode == 0
    source, target = project / "results/lm_eval/start", project / "results/lm_eval/other"
    settings = (project / "params.yaml").read_text(encoding="utf-8")
    try:
        added = settings.replace("  lm_eval:\n", "  lm_eval:\n    other: {policy: base/start, tasks: [sums_choice]}\n")
        (project / "params.yaml").write_text(added, encoding="utf-8")
        documents = read_table(source / "documents.parquet", "documents").filter(task="sums_choice")
        better = [[{**score, "value": 1.0} for score in scores] for scores in documents["scores"]]
        write_table(documents.with_columns(scores=pl.Series(better, dtype=documents["scores"].dtype)),
                    target / "documents.parquet", "documents")  # fmt: skip
        asked = ("compare", "lm_eval/start", "lm_eval/other")
        refused = run(project, "python", "-m", "posttrain", *asked).stdout
        assert "were evaluated on different prompts" in refused and "choose one lm-eval task with --task" in refused
        found = json.loads(run(project, "python", "-m", "posttrain", *asked, "--task", "sums_choice", "--json").stdout)
        figures = json.loads((source / "metrics.json").read_text(encoding="utf-8"))
        means = {row["label"]: row["value"] for row in found["settings"]}
        assert means["lm_eval/other"] == 1.0
        assert means["lm_eval/start"] == pytest.approx(figures["sums_choice.acc"], abs=1e-5)
    finally:
        (project / "params.yaml").write_text(settings, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)


def test_a_run_again_has_the_same_bytes_and_an_edited_task_makes_it_stale(project: Path) -> None:
    files = [project / "results/lm_eval/start" / name for name in ("metrics.json", "documents.parquet")]
    before = [file.read_bytes() for file in files]
    assert stage(project, "lm_eval", "start").returncode == 0
    assert [file.read_bytes() for file in files] == before
    task = project / "custom/sums/sums_choice.yaml"
    text = task.read_text(encoding="utf-8")
    try:
        task.write_text(text + "\nmetadata: {version: 2}\n", encoding="utf-8")
        status = run(project, "python", "-m", "posttrain", "status").stdout
        assert "lm_eval@start" in status and "evaluate@start" not in status
    finally:
        task.write_text(text, encoding="utf-8")


def test_what_lm_eval_cannot_do_is_one_error(project: Path) -> None:
    params = project / "params.yaml"
    text = params.read_text(encoding="utf-8")
    try:
        for tasks, said in {
            "[sums_choise]": "lm-eval has no task 'sums_choise'. Did you mean 'sums_choice'?",
            "[arc_easy]": "lm-eval failed: status 1",  # its data is on the Hub
        }.items():
            params.write_text(text.replace("[sums_choice, sums_written]", tasks), encoding="utf-8")
            assert dvc(project, "repro", "-s", "code").returncode == 0
            done = stage(project, "lm_eval", "start")
            assert done.returncode == 1 and said in done.stdout and "evaluate.lm_eval.start" in done.stdout
    finally:
        params.write_text(text, encoding="utf-8")
