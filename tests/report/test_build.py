"""The stage `report`: what it writes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.report.build import PAGE, SAMPLES, ReportParams, build_report
from posttrain.report.page import embedded
from posttrain.report.policies import labels
from posttrain.report.results import read_summary
from tests.report import workspace
from tests.workspace import ROOT, run

OUTPUTS = ("headline.json", "summary.json", "samples.parquet", "report.html")


def page_data(text: str) -> dict[str, object]:
    """What the page carries, as a browser would read it."""
    inside = text.split('<script type="application/json" id="data">')[1].split("</script>", maxsplit=1)[0]
    data: dict[str, object] = json.loads(inside)
    return data


def test_summary_has_one_object_per_policy(finished: Path) -> None:
    build_report(ReportParams())
    summary = read_summary()
    assert list(summary) == ["base", "sft", "dpo", "grpo", "reward_model"]
    assert summary["grpo"] == {
        "pass_at_1": 0.9,
        "low": 0.85,
        "high": 0.95,
        "greedy": 0.5,
        "format": 0.9,
        "truncated": 0.01,
        "length": 12.5,
        "working": 1.0,
        "right_given_working": 0.9,
        "kl": 0.9,
    }
    headline = json.loads(Path("report/headline.json").read_text())
    assert headline == {"base": 0.0, "sft": 0.3, "dpo": 0.64, "grpo": 0.9, "reward_model": 0.875}
    assert summary["sft"]["kl"] == 0.0, "the reference is no distance from itself"
    assert summary["reward_model"] == {"accuracy": 0.875}


def test_samples_stand_side_by_side(finished: Path) -> None:
    build_report(ReportParams(prompts=7))
    table = pl.read_parquet(SAMPLES)
    assert table["problem"].to_list() == [f"p{n}" for n in range(7)]
    assert table["answer"].to_list() == [str(n + 1) for n in range(7)]
    assert table["prompt"][6] == "What is 6+1? "
    assert table["sft_sampled"][6] == "sample 0 of sft to 6\n#### 7"
    assert table["sft_greedy"][6] == "likeliest 0 of sft to 6\n#### 7"
    assert table["base_sampled_right"].to_list() == [False] * 7
    assert table["sft_sampled_right"].to_list() == [True, False, False, True, False, False, True]
    assert table["dpo_greedy_right"].to_list() == [True, False, True, False, True, False, True]
    assert table["grpo_share_right"].to_list() == [0.0, *[0.5] * 6]


def test_same_inputs_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name in ("one", "two"):
        monkeypatch.chdir(workspace.make(tmp_path / name))
        build_report(ReportParams())
        made.append([Path("report", output).read_bytes() for output in OUTPUTS])
    assert made[0] == made[1]


def test_the_command_works(finished: Path) -> None:
    for name in ("posttrain", "stages"):
        (finished / name).symlink_to(ROOT / name)
    import sys

    done = run(finished, sys.executable, "-m", "stages.report")
    assert done.returncode == 0, done.stdout
    assert all((finished / "report" / output).is_file() for output in OUTPUTS)
    assert not list((finished / "report").glob(".*")), "nothing half-written stays behind"


def test_page_is_one_file_without_links(finished: Path) -> None:
    build_report(ReportParams(title="A <b>bold</b> & title"))
    text = PAGE.read_text(encoding="utf-8")
    assert "{{" not in text.replace("{{script}}", ""), "a placeholder is left"
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<title>A &lt;b&gt;bold&lt;/b&gt; &amp; title · report</title>" in text
    assert "default-src 'none'" in text
    assert len(text.encode()) < 300_000
    for mark in ("http://", "https://", "src=", "@import", "url("):
        found = [line for line in text.splitlines() if mark in line and "application/json" not in line]
        assert all("www.w3.org/2000/svg" in line or "url(#" in line for line in found), (mark, found)


def test_page_data_holds_the_texts_as_they_are(finished: Path) -> None:
    build_report(ReportParams())
    data = page_data(PAGE.read_text(encoding="utf-8"))
    answers = [row["by"][3]["sampled"] for row in data["prompts"]]  # type: ignore[index,attr-defined]
    assert answers[: len(workspace.HOSTILE)] == list(workspace.HOSTILE)
    assert data["reference"] == "sft"
    curves = {one["label"]: one for one in data["curves"]}  # type: ignore[attr-defined]
    assert list(curves) == ["base", "dpo", "grpo"]
    assert curves["grpo"]["columns"]["reward"][30] == 0.5


def test_embedded_json_cannot_end_its_element() -> None:
    hostile = [*workspace.HOSTILE, "\u2028\u2029]]>", "é"]
    text = embedded(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile


def test_long_texts_are_cut_on_the_page_only(finished: Path) -> None:
    rows = workspace.rollouts("base")
    rows[0]["completion"] = "x" * 5000
    workspace.put_policy(finished, "base", rows)
    build_report(ReportParams(characters=100))
    assert pl.read_parquet(SAMPLES)["base_sampled"][0] == "x" * 5000
    shown = page_data(PAGE.read_text(encoding="utf-8"))["prompts"][0]["by"][0]["sampled"]  # type: ignore[index]
    assert shown == "x" * 100 + " … (cut, 5,000 characters)"


def test_results_of_a_removed_run_are_left_out(finished: Path) -> None:
    shutil.copytree(finished / "results/online/grpo", finished / "results/online/old")
    assert "old" not in build_report(ReportParams())


def test_a_pipeline_without_runs_and_reward_model(finished: Path) -> None:
    Path("params.yaml").write_text("preference: {runs: {}}\nonline:\nreport: {}\n")
    Path("metrics/reward.json").unlink()
    assert list(build_report(ReportParams())) == ["base", "sft"]


def test_a_run_named_like_another_keeps_its_whole_path() -> None:
    paths = ["base", "sft", "preference/a", "online/a", "online/b", "online/sft"]
    assert labels(paths) == {
        "base": "base",
        "sft": "sft",
        "preference/a": "preference/a",
        "online/a": "online/a",
        "online/b": "b",
        "online/sft": "online/sft",
    }


def test_missing_results_name_the_file(finished: Path) -> None:
    Path("results/online/grpo/metrics.json").unlink()
    with pytest.raises(DataError, match=r"results/online/grpo/metrics\.json: there is no such file\. .*dvc repro"):
        build_report(ReportParams())
    assert not Path("report").exists()


def test_metrics_without_pass_at_1_are_refused(finished: Path) -> None:
    workspace.put_json(Path("results/sft/metrics.json"), {"greedy": 0.5})
    with pytest.raises(DataError, match="it lacks pass_at_1, pass_at_1_low, pass_at_1_high"):
        build_report(ReportParams())


def test_policies_measured_on_other_prompts_are_refused(finished: Path) -> None:
    workspace.put_policy(finished, "online/grpo", workspace.rollouts("online/grpo", first_prompt=1))
    with pytest.raises(DataError, match="other prompts than base"):
        build_report(ReportParams())


def test_runs_that_are_no_mapping_are_refused(finished: Path) -> None:
    Path("params.yaml").write_text("online: {runs: [grpo]}\nreport: {}\n")
    with pytest.raises(ParamsError, match=r"online\.runs is no mapping"):
        build_report(ReportParams())


def test_a_broken_curve_names_the_file(finished: Path) -> None:
    Path("plots/online/grpo.csv").write_text("step,reward\n0,high\n")
    with pytest.raises(DataError, match=r"plots/online/grpo\.csv: not readable as a table of metrics"):
        build_report(ReportParams())
