"""The metrics of a report, its cells, and where a gain comes from."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from posttrain.pipeline.report import summary as module
from posttrain.pipeline.report.markup import NOT_MEASURED, UNREAD
from posttrain.pipeline.report.policies import Policy
from posttrain.pipeline.report.summary import (
    extra_columns,
    figures_of,
    from_json,
    gain_parts,
    gains,
    headline,
    is_measured,
    is_read,
    part_cell,
    policy_figures,
    reference_of,
    result_rows,
    result_titles,
    reward_figures,
    score_cell,
    score_name,
    settings_in,
    shown_parts,
    subtracted,
    summarize,
    tasks_of,
    to_json,
    trainings,
    trainings_in,
    verdict,
)

BASE = {"score": 0.3, "low": 0.2, "high": 0.4, "kl": 0.0}
BETTER = {"score": 0.5, "low": 0.4, "high": 0.6, "kl": 2.0, "gain": 0.2, "gain_low": 0.1, "gain_high": 0.3}
REWARD = {"accuracy": 0.9}
SUMMARY = {"sft": BASE, "grpo": BETTER, "judge": REWARD}


def policy(label: str, *tasks: str, **metrics: float) -> Policy:
    return Policy(label, f"sft/{label}", {"score": 0.5, **metrics}, pl.DataFrame({"task": tasks or ["a"]}))


def test_policies_and_reward_models_are_summarised() -> None:
    rewards: dict[str, Any] = {"judge": {"heldout_accuracy": 0.9, "steps": 3}, "young": {"steps": 1}}
    assert summarize([policy("sft", kl_k1=1.0, kl_k3=2.0)], rewards) == {
        "sft": {"score": 0.5, "kl": 1.0},
        "judge": REWARD,
    }
    assert policy_figures(SUMMARY) == {"sft": BASE, "grpo": BETTER} and reward_figures(SUMMARY) == {"judge": REWARD}
    assert headline({**SUMMARY, "open": {"score": 0.0, "judged": 0}}) == {"sft": 0.3, "grpo": 0.5, "judge": 0.9}
    assert tasks_of([policy("a", "x", "x"), policy("b", "x", "y")]) == {"a": "x"}


def test_metrics_have_names_and_an_order_of_their_own() -> None:
    metrics = {
        "working": 0.5,
        "pass_at_8": 1.0,
        "maj_at_4": 1.0,
        "best_of_8_by_a": 1,
        "score_low": 0,
        "score": 1,
        "pass_at_1": 1,
    }
    assert figures_of(metrics) == {"score": 1.0, "low": 0.0, "working": 0.5, "pass_at_1": 1.0}
    assert list(figures_of(metrics)) == ["score", "low", "working", "pass_at_1"]


def test_columns() -> None:
    more = {
        "sft": {
            **BASE,
            "working": 0.5,
            "reward_a": 0.1,
            "reward_a_low": 0.0,
            "reward_a_failed": 3.0,
            "fell_working": -1.0,
        }
    }
    assert extra_columns(more) == shown_parts(more["sft"]) == ["working", "reward_a"]
    assert module._is_bound("a_low", {"a"}) is True and module._is_bound("a_low", {"b"}) is False
    assert score_name(SUMMARY) == "score" and score_name({"a": {**BASE, "pass_at_1": 0.3}}) == "pass@1"
    assert module._number({"a": 0.12345}, "a", 3) == "0.123" and module._number({}, "a", 3) == "-"
    assert module._number({"a": -0.0001}, "a", 2) == "0.00"
    assert part_cell({"a": 0.5, "a_low": 0.4, "a_high": 0.6}, "a") == "0.500 [0.400, 0.600]"
    assert part_cell({"a": 0.5}, "a") == "0.500" and part_cell({}, "a") == "-"


def test_scores_that_mean_nothing() -> None:
    assert is_measured({"judged": 0}) is False and is_measured({}) is True
    assert is_read({"parsed": 0.0}) is False and is_read({"parsed": 0.5}) is True
    assert score_cell(BASE) == "0.300 [0.200, 0.400]"
    assert score_cell({**BASE, "parsed": 0}) == f"0.300 [0.200, 0.400] ({UNREAD})"
    assert score_cell({**BASE, "judged": 0}) == NOT_MEASURED


def test_rows_are_stored_with_equal_keys() -> None:
    kept = to_json(
        SUMMARY, {"sft": BASE, "grpo": BETTER}, {"sft": "two_step"}, {"sft": ["sft", "sft2"], "grpo": ["grpo"]}
    )
    assert kept["policies"][0] == {"policy": "sft", "task": "two_step", **dict.fromkeys(BETTER), **BASE}
    assert [row["policies"] for row in kept["settings"]] == ["sft, sft2", "grpo"]
    assert kept["reward_models"] == [{"reward_model": "judge", "accuracy": 0.9}]
    assert from_json(kept) == SUMMARY and settings_in(kept) == SUMMARY
    assert "reward_models" not in to_json({"sft": BASE}, {}, {}, {})
    assert trainings_in(kept) == {"sft": [BASE], "grpo": [BETTER]}


def test_equal_trainings_count_once() -> None:
    members = {"s": ["a", "b", "c", "gone"], "none": ["gone"]}
    assert trainings({"a": BASE, "b": BASE, "c": BETTER}, members) == {"s": [BASE, BETTER]}


def test_the_row_that_is_subtracted() -> None:
    assert reference_of(SUMMARY) == "sft" and reference_of({"a": BETTER}) == "reference"
    assert subtracted(SUMMARY) == "sft"
    assert subtracted({"a": {**BASE, "kl": 1.0}, "b": BASE}) == "b", "no row has a difference"
    assert subtracted({"a": {**BASE, "kl": 1.0}, "b": BETTER}) == "a"
    assert subtracted({"a": {**BASE, "kl": 1.0}, "b": BASE, "c": BETTER}) == "b"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "better (1 seed)"),
        ({"seeds": 3}, "better (1 seed)"),
        ({"over_seeds": 1.0}, "better"),
        ({"gain": -0.2, "gain_low": -0.3, "gain_high": -0.1, "over_seeds": 1.0}, "worse"),
        ({"gain_low": -0.1}, "cannot tell"),
        ({"fell_brief": -0.25}, "better (1 seed); brief fell -0.250"),
    ],
)
def test_verdicts(changed: dict[str, float], said: str) -> None:
    assert verdict({**BETTER, **changed}) == said
    assert verdict(BASE) == ""


def test_the_main_table() -> None:
    titles = [
        "setting",
        "score [95 % interval]",
        "minus sft [95 %, Holm]",
        "verdict",
        "greedy",
        "truncated",
        "length",
        "KL to sft",
    ]
    assert result_titles(SUMMARY) == titles
    assert result_titles(SUMMARY, "dpo")[2] == "minus dpo [95 %, Holm]"
    assert result_rows(SUMMARY) == [
        ["sft", "0.300 [0.200, 0.400]", "-", "", "-", "-", "-", "0.00"],
        ["grpo", "0.500 [0.400, 0.600]", "+0.200 [+0.100, +0.300]", "better (1 seed)", "-", "-", "-", "2.00"],
    ]
    seeds = {"sft": {**BASE, "seeds": 2}, "grpo": BETTER}
    assert module._has_seeds(seeds) is True and module._has_seeds(SUMMARY) is False
    assert result_titles(seeds)[:2] == ["setting", "seeds"] and [row[1] for row in result_rows(seeds)] == ["2", "1"]
    unmeasured = result_rows({"sft": {**BASE, "judged": 0, "greedy": 0.5}})
    assert unmeasured[0][4] == NOT_MEASURED


def test_gains_are_explained_by_their_task() -> None:
    working = {
        "sft": {**BASE, "working": 0.5, "right_given_working": 0.6},
        "grpo": {**BETTER, "working": 0.9, "right_given_working": 0.6},
    }
    parts = gain_parts(working, {"grpo": "two_step"}, {})
    assert len(parts) == 1 and parts[0].startswith("grpo ")
    assert gains(working, {"grpo": "two_step"}, {}) == f"The parts of the gain over sft: {parts[0]}."
    assert gains(working, {}, {}) == "" and gain_parts(working, {}, {}) == []
    assert gain_parts({"sft": {**BASE, "parsed": 0.0}, "grpo": BETTER}, {"grpo": "two_step"}, {}) == []
    assert gain_parts({}, {}, {}) == []
