"""The table on the terminal and the block in the README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.make.readme import (
    BEGIN,
    END,
    FIGURE,
    PICTURE,
    SUMMARY,
    picture_is_current,
    read_summary,
    readme_is_current,
    write_picture,
    write_readme,
)
from posttrain.errors import DataError, PipelineError
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.build import build_report, read_report
from posttrain.pipeline.report.decision import decide
from posttrain.pipeline.report.other_tables import as_cells, other_tables
from posttrain.pipeline.report.policies import read_policies
from posttrain.pipeline.report.results import _judge_note, markdown_table, results_json, results_markdown, results_table
from posttrain.pipeline.report.stale_results import staleness
from posttrain.pipeline.report.summary import extra_columns
from posttrain.settings.plain import merge
from tests.pipeline.report import workspace
from tests.pipeline.report.browser import program
from tests.workspace import ROOT, environment


@pytest.fixture
def reported(finished: Path) -> Path:
    build_report()
    Path("README.md").write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe end.\n", encoding="utf-8")
    return finished


@pytest.mark.slow
def test_table_shows_every_policy_and_what_is_next(reported: Path) -> None:
    lines = results_table({}).splitlines()
    assert lines[0].split("  ")[0] == "setting"
    rows = {line.split()[0]: line for line in lines if line}
    cells = re.split("  +", rows["grpo"])
    assert cells[:2] == ["grpo", "0.900 [0.850, 0.950]"] and cells[2].startswith("+0.317 [")
    assert cells[3:] == ["better (1 seed)", "0.500", "0.900", "1.000", "0.900", "0.010", "12.5", "0.90"]
    assert [line.split()[0] for line in lines[2:6]] == ["grpo", "dpo", "sft", "base"], "the best first"
    assert "Accuracy of the reward model on held-out pairs: reward/main 0.875." in lines
    assert any("report/report.html" in line for line in lines)
    assert any("exp run -S 'online.runs.grpo.kl.beta=0.04'" in line for line in lines)
    assert len({len(line) for line in lines[:6]}) == 1, "the columns do not line up"


def test_columns_that_do_not_fit_the_terminal_are_named(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = results_table({}).partition("\n\n")[0].splitlines()
    assert max(map(len, table[:-1])) <= 80 and table[-1].startswith("not shown: ") and "KL to sft" in table[-1]
    assert "better (1 seed)" in table[2]


def test_differences_are_to_the_setting_that_is_asked_for(reported: Path) -> None:
    table = results_table({}, "dpo")
    assert "minus dpo [95 %, Holm]" in table and re.search(r"\ndpo +0.640 \[0.600, 0.700\] +-  ", table)
    with pytest.raises(PipelineError, match=r"no setting 'dpoo' is evaluated.*Did you mean 'dpo'"):
        results_table({}, "dpoo")


def test_seeds_are_one_row_with_the_means_of_their_figures(finished: Path) -> None:
    second = "    grpo_2: {algorithm: grpo, start: sft/main, data: two_step/prompts, seed: 2, kl: {beta: 0.02}}\n"
    settings = workspace.PARAMS.replace("    grpo: {", f"{second}    grpo: {{")
    settings = settings.replace("grpo: online/grpo}", "grpo: online/grpo, grpo_2: online/grpo_2}")
    Path("params.yaml").write_text(settings, encoding="utf-8")
    workspace.copy_results("dpo", "grpo_2")
    table = finished / "results/grpo_2/rollouts.parquet"
    figures = json.loads(Path("results/grpo/metrics.json").read_text())
    workspace.put_json(table.with_name("metrics.json"), figures | {"length": figures["length"] + 1})
    build_report()
    lines = results_table({}).splitlines()
    assert re.split("  +", lines[0])[:2] == ["setting", "seeds"]
    (row,) = [line for line in lines if line.startswith("grpo")]
    assert re.split("  +", row)[:2] == ["grpo", "2"] and " 13.0 " in row
    kept = {row["setting"]: row for row in json.loads(Path("report/summary.json").read_text())["settings"]}
    assert kept["grpo"]["policies"] == "grpo, grpo_2" and kept["grpo"]["over_seeds"] == 0.0


def test_equal_trainings_of_a_setting_count_once_in_all_its_figures(finished: Path) -> None:
    seeds = "".join(f"    grpo_{n}: {{algorithm: grpo, start: sft/main, seed: {n}}}\n" for n in (1, 2, 3))
    settings = re.sub("    grpo: .*\n", seeds, workspace.PARAMS)
    settings = settings.replace("grpo: online/grpo}", ", ".join(f"grpo_{n}: online/grpo_{n}" for n in (1, 2, 3)) + "}")
    Path("params.yaml").write_text(settings, encoding="utf-8")
    for n in (1, 2, 3):
        workspace.copy_results("dpo" if n == 3 else "grpo", f"grpo_{n}")
        workspace.put_json(
            Path(f"results/grpo_{n}/metrics.json"), workspace.metrics("grpo") | {"length": 10.0 + n // 3}
        )
    policies, errors = read_policies(read(), {})
    (row,) = [row for row in decide(policies, read()).rows if row.setting == "grpo"]
    assert not errors and row.policies == ("grpo_1", "grpo_2", "grpo_3") and row.trained == ("grpo_1", "grpo_3")
    assert (row.figures["seeds"], row.figures["length"]) == (2, 10.5)
    (shown,) = [row for row in read_report({}).data["decision"]["rows"] if row["setting"] == "grpo"]
    assert shown["trained"] == ("grpo_1", "grpo_3"), "the page's other columns are of these as well"


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ({"plain": "facts/prompts"}, ["sft"]),
        ({"plain": "two_step/prompts"}, ["sft (plain)"]),
        ({"plain": "facts/prompts", "shots": "facts/prompts"}, ["sft (plain)", "sft (shots)"]),
    ],
)
def test_evaluations_of_one_model_are_told_apart(finished: Path, runs: dict[str, str], names: list[str]) -> None:
    for run in runs:
        workspace.copy_results("sft", run)
    listed = {run: {"policy": "sft/main", "data": data} for run, data in runs.items()}
    (table,), errors = other_tables(merge(read(), {"evaluate": {"runs": listed}}), {})
    titles, *rows = as_cells(table)
    assert ([row[0] for row in rows], titles[2], errors) == (names, f"difference to {names[0]}", {})


def test_evaluations_whose_scores_mean_something_else_are_tables_of_their_own(finished: Path) -> None:
    others: dict[str, dict[str, Any]] = {
        "plain": {},
        "shots": {"context": [{"role": "system", "content": "Think."}], "split": "test", "samples": 4},
        "cold": {"sampling": {"temperature": 0.5}},
        "short": {"reward": {"correct": 1.0, "brief": 0.5}},
        "held": {"split": "heldout"},
    }
    for run in others:
        workspace.copy_results("sft", run)
    listed = {run: {"policy": "sft/main", "data": "facts/prompts", **other} for run, other in others.items()}
    tables, errors = other_tables(merge(read(), {"evaluate": {"runs": listed}}), {})
    settings = ("test", "test, sampling.temperature=0.5", "test, reward.correct=1.0, reward.brief=0.5", "heldout")
    assert [table.name for table in tables] == [f"facts/prompts, split={text}" for text in settings] and not errors
    assert [[row["run"] for row in table.rows] for table in tables] == [
        ["plain", "shots"],
        ["cold"],
        ["short"],
        ["held"],
    ]
    assert [row["run"] for table in tables for row in table.rows if "gain" in row] == ["shots"]


@pytest.mark.slow
def test_ratings_are_shown(reported: Path) -> None:
    assert "ratings" not in results_table({})
    workspace.rate(reported)
    lines = results_table({}).splitlines()
    first = lines.index("ratings main, by score")
    assert [line.split()[0] for line in lines[first + 2 : first + 6]] == ["grpo", "dpo", "sft", "base"]
    assert lines[first + 2].split() == ["grpo", "+91", "[+75,", "+107]", "1"]
    assert lines[first + 3].endswith("2 to 3")


def test_ratings_and_reward_models_that_are_not_current_are_left_out_with_the_reason(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    Path("params.yaml").write_text(f"{workspace.PARAMS}  ratings: {{main: {{}}}}\n", encoding="utf-8")
    rated = {"policy": "sft", "rating": 0.0, "rating_low": -1.0, "rating_high": 1.0, "rank_low": 1, "rank_high": 1}
    workspace.put_json(Path("metrics/ratings/main.json"), {"decided_by": "score", "policies": [rated]})
    reasons = staleness().reasons
    stale = {name: reasons[name] for name in ("ratings/main", "reward/main")}
    assert all(reason.startswith("out of date: ") for reason in stale.values()), "no stage has written them here"
    nothing: dict[str, str] = {}
    for left_out in (nothing, stale):
        rows, data, text = json.loads(results_json(left_out)), read_report(left_out).data, results_table(left_out)
        assert {row["policy"]: row["error"] for row in rows if "error" in row} == left_out
        assert {one["label"]: one["error"] for one in data["errors"]} == left_out
        shown = ["ratings" in row for row in rows].count(True), len(data["ratings"]), len(data["rewards"])
        assert shown == ((1, 1, 1) if not left_out else (0, 0, 0))
        assert ("ratings main, by score" in text, "reward/main 0.875" in text) == (not left_out, not left_out)
        assert all(re.search(rf"\n{name} +{re.escape(reason)}\n", text) for name, reason in left_out.items())


@pytest.mark.slow
def test_a_run_that_fell_while_it_was_trained_is_said_as_in_the_report(reported: Path) -> None:
    said = "grpo: the true reward was best at step 30; the model is that of step 60."
    assert said not in results_table({}) and "of one test set" in results_table({})
    workspace.watch(reported)
    assert f"{said} Over-optimised at step 60." in results_table({}).splitlines()
    file = Path("metrics/online/grpo.json")
    metrics = json.loads(file.read_text())
    del metrics["over_optimised_step"]
    workspace.put_json(file, metrics)
    assert said in results_table({}).splitlines()
    workspace.put_json(file, metrics | {"kept_step": 30})
    assert "grpo: the true" not in results_table({})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"online": {"runs": {"grpo": {"kl": {"beta": 0.0}, "optimizer": {"lr": 0.001}}}}},
            "online.runs.grpo.optimizer.lr=0.002",
        ),
        ({"online": {"runs": {"grpo": {"kl": {"beta": 0}}}}}, "+evaluate.settings.samples=16"),
        ({"evaluate": {"settings": {"samples": 4}}}, "evaluate.settings.samples=8"),
    ],
)
def test_what_is_next_changes_a_setting(finished: Path, settings: dict[str, Any], expected: str) -> None:
    changed = {"evaluate": {"policies": {"sft": "sft/main"}}}
    changed = {**settings, "evaluate": {**changed["evaluate"], **settings.get("evaluate", {})}}
    Path("params.yaml").write_text(json.dumps(changed), encoding="utf-8")
    assert f"exp run -S '{expected}'" in results_table({})


@pytest.mark.slow
def test_a_policy_without_current_results_is_a_row_with_its_reason(finished: Path) -> None:
    table = results_table({"grpo": "failed: online@grpo: the memory ran out"})
    assert re.search(r"\ngrpo +failed: online@grpo: the memory ran out\n", table)
    assert not [line for line in table.splitlines() if line.startswith("grpo") and "[" in line]
    nothing = results_table(dict.fromkeys(("base", "sft", "dpo", "grpo"), "not run yet"))
    assert "pass@1" not in nothing and nothing.endswith("Run the pipeline: dvc repro")
    with pytest.raises(DataError, match="sft: not run yet"):
        write_readme({"sft": "not run yet"})


@pytest.mark.slow
def test_a_measured_0_is_shown_as_0_wherever_it_is_shown(reported: Path) -> None:
    """It was "not measured", although metrics.json had the score with its interval."""
    file = reported / "results/base/metrics.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "parsed": 0.0, "greedy": 0.0}))
    build_report()
    (row,) = [line for line in results_table({}).splitlines() if line.startswith("base ")]
    assert "0.000 [0.000, 0.000] (no readable answer)" in row and "not measured" not in row
    (data,) = [one for one in json.loads(results_json({})) if one["policy"] == "base"]
    assert [data[key] for key in ("score", "low", "high", "greedy", "pass_at_1")] == [0.0] * 5
    assert json.loads((reported / "report/headline.json").read_text())["base"] == 0.0
    assert "base,0.0" in (reported / "report/scores.csv").read_text()
    page = (reported / "report/report.html").read_text()
    assert "0.000 [0.000,\u00a00.000] (no readable answer)" in page
    write_readme({})
    assert "0.00 (no readable answer)</text>" in FIGURE.read_text(encoding="utf-8")
    assert "| base | 0.000 [0.000, 0.000] (no readable answer) | " in Path("README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_policy_on_prompts_that_no_reward_judges_is_not_measured_wherever_it_is_shown(reported: Path) -> None:
    file = reported / "results/base/metrics.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "parsed": 0.0, "judged": 0.0}))
    build_report()
    (row,) = [line for line in results_table({}).splitlines() if line.startswith("base ")]
    assert row.count("not measured") == 2, "its score and that of greedy completions"
    (data,) = [one for one in json.loads(results_json({})) if one["policy"] == "base"]
    assert [data[key] for key in ("score", "low", "high", "greedy", "pass_at_1")] == [None] * 5
    assert "base" not in json.loads((reported / "report/headline.json").read_text())
    write_readme({})
    assert "not measured</text>" in FIGURE.read_text(encoding="utf-8")
    assert "| base | not measured | -0.167 [" in Path("README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_figure_that_rounds_to_zero_has_no_sign(reported: Path) -> None:
    file = reported / "results/base/metrics.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "kl_k1": -0.004}))
    build_report()
    (row,) = [line for line in results_table({}).splitlines() if line.startswith("base ")]
    assert row.split()[-1] == "0.00"


@pytest.mark.slow
def test_readme_gets_the_table_and_keeps_the_rest(reported: Path) -> None:
    assert not readme_is_current()
    write_readme({})
    text = Path("README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nThe end.\n")
    assert "old" not in text
    assert "| sft | 0.300 [0.250, 0.350] | - |  | 0.500 | 0.900 | 0.500 | 0.600 | 0.010 | 12.5 | 0.00 |" in text
    assert "The parts of the gain over sft: grpo gained 0.60, of which" in text
    assert readme_is_current()


@pytest.mark.skipif(program() is None, reason="needs a browser: apt-get install chromium")
def test_the_picture_is_of_the_results_in_the_table(reported: Path) -> None:
    """The README once showed two scores of one policy: the table was written anew, the picture was not."""
    write_picture()
    assert PICTURE.read_bytes().startswith(b"\x89PNG") and picture_is_current()
    summary = Path(SUMMARY)
    kept = json.loads(summary.read_text())
    kept["settings"][0]["score"] = 0.925
    summary.write_text(json.dumps(kept))
    assert not picture_is_current()
    write_picture()
    assert picture_is_current()


@pytest.mark.slow
def test_writing_again_changes_nothing(reported: Path) -> None:
    write_readme({})
    before = [Path("README.md").read_bytes(), FIGURE.read_bytes()]
    write_readme({})
    assert [Path("README.md").read_bytes(), FIGURE.read_bytes()] == before


@pytest.mark.slow
def test_readme_is_stale_after_a_new_run(reported: Path) -> None:
    write_readme({})
    summary = Path("report/summary.json")
    summary.write_text(summary.read_text().replace("0.85", "0.86"))
    assert not readme_is_current()


@pytest.mark.slow
def test_a_plot_of_another_run_is_stale(reported: Path) -> None:
    write_readme({})
    FIGURE.write_text("<svg></svg>")
    assert not readme_is_current()


@pytest.mark.slow
def test_plot_shows_policies_and_learning(reported: Path) -> None:
    write_readme({})
    svg = FIGURE.read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>\n")
    for text in ("base", "sft", "dpo", "grpo", "0.90", "How the runs learn"):
        assert f">{text}</text>" in svg


@pytest.mark.slow
def test_plot_without_curves_still_has_the_bars(reported: Path) -> None:
    Path("plots/online/grpo.csv").unlink()
    write_readme({})
    svg = FIGURE.read_text(encoding="utf-8")
    assert "What each policy can do" in svg
    assert "How the runs learn" not in svg


@pytest.mark.slow
def test_a_score_other_than_right_or_wrong_is_shown_by_its_name(reported: Path) -> None:
    workspace.graded(reported)
    build_report()
    lines = results_table({}).splitlines()
    assert re.split(r"  +", lines[0])[:4] == ["setting", "score [95 % interval]", "minus sft [95 %, Holm]", "verdict"]
    rows = {line.split()[0]: line for line in lines if line}
    assert re.split("  +", rows["grpo"])[1] == "2.600 [2.400, 2.800]" and "1.000  " in rows["grpo"]
    assert rows["base"].split()[1:4] == ["-1.000", "[-1.000,", "-1.000]"]
    assert "What the gain" not in "\n".join(lines), "no task explains it"
    write_readme({})
    svg = FIGURE.read_text(encoding="utf-8")
    assert ">score on test problems, 95 % interval</text>" in svg and ">2.60</text>" in svg and "pass@1" not in svg


@pytest.mark.slow
@pytest.mark.parametrize("text", ["no marks", f"{BEGIN}", f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_readme_without_markers_is_not_changed(reported: Path, text: str) -> None:
    Path("README.md").write_text(text)
    with pytest.raises(DataError, match="markers of the results are missing or repeated"):
        write_readme({})
    assert Path("README.md").read_text() == text
    assert not FIGURE.exists()


@pytest.mark.slow
def test_every_suggested_command_works_in_a_project(reported: Path) -> None:
    shown = results_table({}).partition("Next")[2]
    assert "docs/" not in shown
    words = re.search(r"(posttrain show results --help)", shown)
    assert words
    done = subprocess.run(
        [sys.executable, "-m", *words[1].split()],
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and "KL to NAME" in done.stdout and "pass@1" in done.stdout


@pytest.mark.slow
def test_docs_name_every_figure(reported: Path) -> None:
    text = (ROOT / "docs/reference/results.md").read_text(encoding="utf-8")
    for name in read_summary()[0]["grpo"]:
        assert f"`{name}`" in text


def test_what_a_judge_took_is_a_line_and_no_column() -> None:
    took = {"judge_requests": 1200.0, "judge_tokens_in": 45_000.0, "judge_tokens_out": 900.0}
    summary = {
        "sft": {"score": 0.5, **took, "judge_cost": 0.1234},
        "base": {"score": 0.5, **took},
        "dpo": {"score": 1.0},
    }
    assert list(map(_judge_note, summary.items())) == [
        "The judge of sft: 1,200 requests, 45,000 tokens in, 900 out, cost 0.1234.",
        "The judge of base: 1,200 requests, 45,000 tokens in, 900 out.",
        "",
    ]
    assert extra_columns(summary) == []


def test_the_table_in_markdown_is_that_of_the_page(finished: Path) -> None:
    text = results_markdown({})
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    titles, ruler, *settings = rows
    assert titles[0] == "setting" and {*ruler[1:]} == {"---:"} and len({len(row) for row in rows}) == 1
    assert {row[0] for row in settings} == {"base", "sft", "dpo", "grpo"}
    assert markdown_table([["a|b"], ["c"]]) == "| a\\|b |\n| --- |\n| c |"
