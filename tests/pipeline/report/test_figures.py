"""The figures of a report, by hand-computed numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from docs.make.readme import smoothed
from posttrain.files import write_json
from posttrain.pipeline.lineage.figures import Figures, shown_in
from posttrain.pipeline.report.curves import thinned
from posttrain.pipeline.report.lineage import differing
from posttrain.pipeline.report.policies import Policy, read_policies
from posttrain.pipeline.report.samples import lengths
from posttrain.pipeline.report.summary import (
    SUMMARY,
    from_json,
    gains,
    result_titles,
    score_name,
    settings_in,
    summarize,
    to_json,
    trainings_in,
    verdict,
)
from posttrain.pipeline.tables.curve import read_curve
from posttrain.settings.plain import flattened


def test_a_summary_is_stored_as_rows_with_equal_keys() -> None:
    summary = {"base": {"score": 0.0}, "sft": {"score": 0.3, "kl": 0.0}, "reward/main": {"accuracy": 0.9}}
    settings = {"sft": {"score": 0.3, "kl": 0.0, "seeds": 1}, "base": {"score": 0.0, "seeds": 1}}
    kept = to_json(summary, settings, {"base": "two_step"}, {"sft": ["sft"], "base": ["base"]})
    first = {"policy": "base", "task": "two_step", "score": 0.0, "kl": None}
    assert kept["policies"][0] == first, "DVC draws equal keys alone"
    assert from_json(kept) == summary
    assert settings_in(kept) == {**settings, "reward/main": {"accuracy": 0.9}}
    assert kept["settings"][1]["policies"] == "base"


def test_metrics_have_the_names_that_compare_takes() -> None:
    rows = {"base": {"score": 0.0, "reward_brief_enough": 0.5}, "sft": {"score": 0.3, "reward_brief_enough": 0.4}}
    assert "brief_enough" in result_titles(rows)


TASKS = dict.fromkeys(("base", "sft", "up", "same", "down", "mute"), "two_step")


def figures(score: float, working: float, accuracy: float, kl: float) -> dict[str, float]:
    """With a paired difference to a score of 0.3 that is known to 0.02."""
    bounds = {"score": score, "low": score - 0.2, "high": score + 0.2}
    gain = {"gain": score - 0.3, "gain_low": score - 0.32, "gain_high": score - 0.28}
    return {**bounds, "working": working, "right_given_working": accuracy, "kl": kl, **gain}


def test_a_gain_is_explained_and_the_verdict_says_the_rest() -> None:
    # without working never right: b = 0. up: (.9 - .5) * (.6 + .8) / 2 = .28 of .42
    rows = {
        "base": figures(0.0, 0.9, 0.0, 40.0),
        "sft": figures(0.3, 0.5, 0.6, 0.0),
        "up": figures(0.72, 0.9, 0.8, 0.5),
        "same": figures(0.31, 0.5, 0.62, 0.1),
        "down": figures(0.1, 0.5, 0.2, 0.9),
        "reward/main": {"accuracy": 0.9},
    }
    text = gains(rows, TASKS, {})
    assert text.startswith("The parts of the gain over sft: up gained 0.42, of which +0.28 (67 %) by showing")
    assert "0.50 → 0.90 of the completions" in text and "same" not in text and "down" not in text
    said = {name: verdict(row) for name, row in rows.items()}
    assert said["up"] == "better (1 seed)" and said["same"] == "cannot tell" and said["reward/main"] == ""
    assert verdict(rows["down"] | {"over_seeds": 1.0}) == "worse"


def test_a_gain_of_several_seeds_is_explained_seed_by_seed() -> None:
    # up_1: .5 * .6 / 2 = .15 of .60; up_2: -.3 * (.6 + .5) / 2 = -.165 of -.20; the copy of up_1 counts once
    each = {
        "sft": figures(0.3, 0.5, 0.6, 0.0),
        "up_1": figures(0.9, 1.0, 0.9, 0.5),
        "up_2": figures(0.1, 0.2, 0.5, 0.5),
    }
    each["up_1_again"] = dict(each["up_1"])
    rows = {"sft": each["sft"], "up": figures(0.5, 0.6, 0.7, 0.5)}
    kept = to_json(each, rows, TASKS, {"sft": ["sft"], "up": ["up_1", "up_2", "up_1_again"]})
    text = gains(rows, TASKS, trainings_in(kept))
    assert "up gained 0.20, of which -0.01 (-4 %) by showing its working more often (in 0.50 → 0.60 of" in text
    assert "+0.21 by being right more often (accuracy given working 0.60 → 0.70)" in text


def test_the_row_that_is_subtracted_is_named_whatever_its_kl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up = figures(0.72, 0.9, 0.8, 0.5)
    base = {key: value for key, value in figures(0.3, 0.5, 0.6, 0.0).items() if not key.startswith("gain")}
    pooled = {"up": up, "sft": base | {"kl": 0.7, "seeds": 2}}
    unmeasured = {name: {key: value for key, value in row.items() if key != "kl"} for name, row in pooled.items()}
    for rows in (pooled, unmeasured):
        titles = result_titles(rows)
        assert any(title.startswith("minus sft ") for title in titles) and "KL to reference" in titles
        assert gains(rows, TASKS, {}).startswith("The parts of the gain over sft: up gained 0.42")
    monkeypatch.chdir(tmp_path)
    members = {"up": ["up"], "sft": ["sft_s1", "sft_s2"]}
    write_json(Path(SUMMARY), to_json({}, pooled, {}, members))
    gain = Figures().recorded["up.gain"]
    assert gain.of == ("sft_s1.score", "sft_s2.score", "up.score")
    Path(SUMMARY).write_text("<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n")
    assert shown_in(gain) == [] and Figures().recorded == {}, "a merge is in the middle"


def test_only_a_task_explains_a_gain() -> None:
    policies = {"sft": figures(0.3, 0.5, 0.6, 0.0), "up": figures(0.72, 0.9, 0.8, 0.5)}
    assert gains(policies, {"sft": "", "up": ""}, {}) == ""
    assert gains(policies, {}, {}) == "", "prompts of several tasks"


def test_a_score_is_pass_at_1_where_each_policy_has_it() -> None:
    bounds = {"score_low": 0.0, "score_high": 1.0}
    both = {"score": 0.5, "pass_at_1": 0.5, **bounds}
    one = {"score": 0.5, **bounds}
    read = {name: Policy(name, name, found, pl.DataFrame()) for name, found in (("a", both), ("b", one))}
    assert score_name(summarize([read["a"]], {})) == "pass@1"
    assert score_name(summarize(read.values(), {})) == "score"


def test_nothing_is_explained_without_readable_answers() -> None:
    sft, mute = {**figures(0.3, 0.5, 0.6, 0.0), "parsed": 0.9}, {**figures(0.0, 0.5, 0.0, 0.5), "parsed": 0.0}
    assert gains({"sft": sft, "mute": mute}, TASKS, {}) == ""
    assert gains({"sft": {**mute, "kl": 0.0}, "up": {**sft, "kl": 0.5, "gain_low": 0.1}}, TASKS, {}) == ""


def test_thinned_means_equally_many_steps() -> None:
    columns, each = thinned({"step": [0, 1, 2, 3, 4], "loss": [1.0, 3.0, None, 5.0, None]}, points=3)
    assert each == 2
    assert columns == {"step": [0.5, 2.5, 4], "loss": [2.0, 5.0, None]}


def test_curve_has_gaps_where_nothing_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text("step,loss,reward\n0,1.5,\n1,nan,0.25\n2,0.5\n")
    assert read_curve(file) == {"step": [0, 1, 2], "loss": [1.5, None, 0.5], "reward": [None, 0.25, None]}


def test_smoothed_is_a_running_mean() -> None:
    assert smoothed([0.0, None, 4.0]) == [2.0, 2.0, 2.0]
    assert smoothed([float(n) for n in range(20)])[10] == 10.0
    assert smoothed([None]) == [None]


@pytest.mark.slow
def test_lengths_are_those_of_samples(finished: Path) -> None:
    # 30 prompts, 6 of each of the lengths 1..5 for the first sample and 2..6 for the second
    from posttrain.pipeline.params.params_file import read

    found = lengths(read_policies(read(), {})[0][0])
    assert found["mean"] == 3.5
    assert found["p5"] == 1
    assert found["p95"] == 6


def test_flattened_names_nested_settings() -> None:
    assert flattened({"kl": {"beta": 0.02}, "start": "sft/main", "none": None, "empty": {}}) == {
        "kl.beta": "0.02",
        "start": "sft/main",
        "none": "null",
        "empty": "{}",
    }


def test_differing_separates_what_runs_share() -> None:
    runs = {"a": {"algorithm": "grpo", "kl": {"beta": 0.1}}, "b": {"algorithm": "grpo", "lr": 1}}
    found = differing({"online": {"runs": runs}})
    assert found["runs"] == ["online/a", "online/b"]
    assert found["differ"] == [{"key": "kl.beta", "values": ["0.1", None]}, {"key": "lr", "values": [None, "1"]}]
    assert found["alike"] == [{"key": "algorithm", "values": ["grpo", "grpo"]}]
