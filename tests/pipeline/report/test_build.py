"""The stage `report`: what it writes, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from docs.make.readme import read_summary
from posttrain.errors import DataError, ParamsError
from posttrain.measure.terminal import ACTIVE
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.build import CURVES, PAGE, SAMPLES, build_report
from posttrain.pipeline.report.lineage import labels
from posttrain.pipeline.report.markup import element, figures, listed
from posttrain.pipeline.report.page import asset, embedded, plain_page
from tests.pipeline.report import workspace
from tests.workspace import ROOT, run

OUTPUTS = ("headline.json", "summary.json", "samples.parquet", "curves.csv", "scores.csv", "report.html")


def page_data(text: str) -> dict[str, Any]:
    """What the page carries, as a browser would read it."""
    inside = text.split('<script type="application/json" id="data">')[1].split("</script>", maxsplit=1)[0]
    data: dict[str, Any] = json.loads(inside)
    return data


@pytest.mark.slow
def test_summary_has_one_object_per_policy(finished: Path) -> None:
    build_report()
    summary, tasks, members = read_summary()
    assert members == {name: [name] for name in ("grpo", "dpo", "sft", "base")}
    assert list(summary) == ["grpo", "dpo", "sft", "base", "reward/main"], "the best first"
    assert tasks == dict.fromkeys(("base", "sft", "dpo", "grpo"), "two_step")
    interval = [summary["grpo"].pop(key) for key in ("gain_low", "gain", "gain_high")]  # type: ignore[attr-defined]
    assert interval == sorted(interval) and interval[1] == pytest.approx(0.3167, abs=1e-4), "paired: by the rollouts"
    assert summary["grpo"] == {
        "score": 0.9,
        "low": 0.85,
        "high": 0.95,
        "greedy": 0.5,
        "truncated": 0.01,
        "length": 12.5,
        "pass_at_1": 0.9,
        "reward_format": 0.9,
        "working": 1.0,
        "right_given_working": 0.9,
        "kl": 0.9,
        "seeds": 1,
        "over_seeds": 0.0,
    }
    headline = json.loads(Path("report/headline.json").read_text())
    assert headline == {"base": 0.0, "sft": 0.3, "dpo": 0.64, "grpo": 0.9, "reward/main": 0.875}
    assert summary["sft"]["kl"] == 0.0, "the reference is no distance from itself"
    assert summary["reward/main"] == {"accuracy": 0.875}


@pytest.mark.slow
def test_samples_of_all_policies_are_in_one_row_per_prompt(finished: Path) -> None:
    build_report()
    table = pl.read_parquet(SAMPLES)
    assert table["problem"].to_list() == [f"p{n}" for n in range(30)]
    assert table["answer"].to_list() == [str(n + 1) for n in range(30)]
    assert table["prompt"][6] == "What is 6+1? "
    assert table["sft_sampled"][6] == "sample 0 of sft to 6\n#### 7"
    assert table["sft_greedy"][6] == "likeliest 0 of sft to 6\n#### 7"
    assert table["base_sampled_score"].to_list() == [0.0] * 30
    assert table["sft_sampled_score"].to_list() == [1.0, 0.0, 0.0] * 10
    assert table["dpo_greedy_score"].to_list() == [1.0, 0.0] * 15
    assert table["grpo_mean_score"].to_list() == [0.0, *[0.5] * 29]


@pytest.mark.slow
def test_same_inputs_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("one", "two"):
        monkeypatch.chdir(workspace.make(tmp_path / name))
        build_report()
        made.append([Path("report", output).read_bytes() for output in OUTPUTS])
    assert made[0] == made[1]


@pytest.mark.slow
def test_the_command_works(finished: Path) -> None:
    for name in ("posttrain", "stages"):
        (finished / name).symlink_to(ROOT / name)
    import sys

    done = run(finished, sys.executable, "-m", "stages.report")
    assert done.returncode == 0, done.stdout
    assert all((finished / "report" / output).is_file() for output in OUTPUTS)
    assert not list((finished / "report").glob(".*")), "nothing half-written stays behind"


@pytest.mark.slow
def test_page_is_one_file_without_links(finished: Path) -> None:
    build_report()
    text = PAGE.read_text(encoding="utf-8")
    assert "{{" not in text.replace("{{script}}", ""), "a placeholder is left"
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<title>posttrain · report</title>" in text
    assert "default-src 'none'" in text
    assert len(text.encode()) < 300_000
    for mark in ("http://", "https://", "src=", "@import", "url("):
        found = [line for line in text.splitlines() if mark in line and "application/json" not in line]
        assert all("www.w3.org/2000/svg" in line or "url(#" in line for line in found), (mark, found)


@pytest.mark.slow
def test_page_data_holds_the_texts_as_they_are(finished: Path) -> None:
    build_report()
    data = page_data(PAGE.read_text(encoding="utf-8"))
    answers = [row["by"][3]["samples"][0]["text"] for row in data["prompts"]]
    assert answers[: len(workspace.HOSTILE)] == list(workspace.HOSTILE)
    assert data["reference"] == "sft"
    curves = {one["label"]: one for one in data["curves"]}
    assert list(curves) == ["base", "dpo", "grpo"]
    assert curves["grpo"]["columns"]["reward"][30] == 0.5


@pytest.mark.slow
def test_page_data_holds_the_evaluations_of_a_watched_run(finished: Path) -> None:
    workspace.watch(finished)
    build_report()
    data = page_data(PAGE.read_text(encoding="utf-8"))
    (one,) = data["evaluations"]
    assert (one["label"], one["best_step"], one["over_optimised_step"]) == ("grpo", 30, 60)
    true, proxy = one["measured"]
    assert (true["name"], proxy["name"]) == ("true", "proxy")
    assert true["points"] == [
        {"x": 0, "y": 0.3, "low": 0.2, "high": 0.4},
        {"x": 30, "y": 0.6, "low": 0.5, "high": 0.7},
        {"x": 60, "y": 0.1, "low": 0.0, "high": 0.2},
    ], "steps without an evaluation are left out"
    assert [point["y"] for point in proxy["points"]] == [0.1, 0.5, 0.9]


MARKS = "".join(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C, 0x1B, 0x7F]))


def test_a_page_shows_marks_of_direction_and_does_not_obey_them() -> None:
    """In texts, attributes and the title; a script's texts are those of elements.js, which test_page.py opens."""
    body = element("main", MARKS, element("p", *MARKS, title=MARKS), listed([MARKS]), figures({MARKS: MARKS}))
    written = plain_page(MARKS, body)
    assert not ACTIVE.search(written)
    assert written.count("⟨U+202E⟩") == 7 and written.count("⟨U+001B⟩") == 7
    assert element("p", "שלום", "\t\n") == "<p>שלום\t\n</p>", "letters from right to left stay"


def test_the_script_escapes_what_the_terminal_escapes() -> None:
    listed_there = re.search(r"const ACTIVE = /\[(.*)\]/gu", asset("elements.js"))
    assert listed_there
    pattern = re.compile(f"[{listed_there[1].replace('p{Cs}', 'ud800-' + chr(92) + 'udfff')}]")
    assert all(bool(pattern.match(chr(code))) == bool(ACTIVE.match(chr(code))) for code in range(0x10000))


def test_embedded_json_cannot_end_its_element() -> None:
    hostile = [*workspace.HOSTILE, "\u2028\u2029]]>", "é"]
    text = embedded(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile


@pytest.mark.slow
def test_long_texts_are_cut_on_the_page_only(finished: Path) -> None:
    rows = workspace.rollouts("base")
    rows[0]["completion"] = "x" * 5000
    workspace.put_policy(finished, "base", rows)
    build_report()
    assert pl.read_parquet(SAMPLES)["base_sampled"][0] == "x" * 5000
    shown = page_data(PAGE.read_text(encoding="utf-8"))["prompts"][0]["by"][0]["samples"][0]["text"]
    assert shown == "x" * 2000 + " … (cut, 5,000 characters)"


def test_the_tables_are_in_the_page_without_its_script(finished: Path) -> None:
    Path("params.yaml").write_text(workspace.PARAMS.replace("beta: 0.1", "beta: 0.1, note: '<b>&'"))
    build_report()
    written = PAGE.read_text(encoding="utf-8").split('<script type="application/json"', maxsplit=1)[0]
    row = '<th scope="row" role="rowheader">{}</th>'
    assert written.count(row.format("grpo")) == 2, "results, and what is wrong"
    assert all(row.format(stage) in written for stage in ("sft/main", "online/grpo", "evaluate"))
    assert "0.900 [0.850,\u00a00.950]" in written
    assert "<code>&lt;b&gt;&amp;</code>" in written and "<b>&" not in written


@pytest.mark.slow
def test_results_of_a_removed_run_are_left_out(finished: Path) -> None:
    shutil.copytree(finished / "results/grpo", finished / "results/old")
    assert build_report() == {}
    assert "old" not in read_summary()[0]


@pytest.mark.slow
def test_a_pipeline_without_runs_and_reward_model(finished: Path) -> None:
    Path("params.yaml").write_text("evaluate: {policies: {base: base/tiny, sft: sft/main}}\n")
    assert build_report() == {}
    assert list(read_summary()[0]) == ["sft", "base"]


@pytest.mark.slow
def test_a_run_is_shown_by_its_label_or_else_by_its_folder(finished: Path) -> None:
    assert labels(read()) == {
        "base/tiny": "base",
        "sft/main": "sft",
        "reward/main": "reward/main",
        "preference/dpo": "dpo",
        "online/grpo": "grpo",
    }


@pytest.mark.slow
def test_the_curves_of_all_runs_are_one_table(finished: Path) -> None:
    build_report()
    table = pl.read_csv(CURVES)
    assert table.columns == ["metric", "run", "step", "value"]
    assert table.filter(metric="reward")["run"].unique().to_list() == ["grpo"]
    assert table.filter(metric="loss")["run"].unique(maintain_order=True).to_list() == ["base", "dpo", "grpo"]
    assert table.filter(metric="loss", run="dpo")["value"].to_list()[:3] == [0.7, 0.69, 0.68]


def check_left_out(label: str, error: str) -> None:
    """The report names the error of one policy, on its page too, and shows the others."""
    errors = build_report()
    assert list(errors) == [label]
    assert re.search(error, errors[label]), errors
    assert list(read_summary()[0]) == [name for name in ("grpo", "dpo", "sft", "base", "reward/main") if name != label]
    assert page_data(PAGE.read_text(encoding="utf-8"))["errors"] == [{"label": label, "error": errors[label]}]


@pytest.mark.slow
def test_missing_results_name_the_file(finished: Path) -> None:
    Path("results/grpo/metrics.json").unlink()
    check_left_out("grpo", r"^results/grpo/metrics\.json: file not found\. .*dvc repro")


@pytest.mark.slow
def test_metrics_without_a_score_are_refused(finished: Path) -> None:
    workspace.put_json(Path("results/sft/metrics.json"), {"greedy": 0.5})
    check_left_out("sft", "score, score_low, score_high missing")


@pytest.mark.slow
def test_policies_measured_on_other_prompts_are_refused(finished: Path) -> None:
    workspace.put_policy(finished, "grpo", workspace.rollouts("grpo", first_prompt=1))
    check_left_out("grpo", "different prompts than base")


def test_runs_that_are_not_a_mapping_are_refused(finished: Path) -> None:
    Path("params.yaml").write_text("online: {runs: [grpo]}\n")
    with pytest.raises(ParamsError, match=r"online\.runs is \['grpo'\], not a mapping of names to settings"):
        build_report()
    assert not Path("report").exists()


@pytest.mark.slow
def test_a_broken_curve_names_the_file(finished: Path) -> None:
    Path("plots/online/grpo.csv").write_text("step,reward\n0,high\n")
    with pytest.raises(DataError, match=r"plots/online/grpo\.csv: not readable as a table of metrics"):
        build_report()


def test_policies_that_cannot_be_shown_are_returned(finished: Path) -> None:
    assert build_report() == {}
    (finished / "results/dpo/metrics.json").unlink()
    assert list(build_report()) == ["dpo"]
