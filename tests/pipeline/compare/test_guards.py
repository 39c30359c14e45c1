"""Metrics in a comparison: one is tested in place of the score, and a guarded one that fell is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.commands.compare import run
from posttrain.pipeline.commands.line import parser
from posttrain.pipeline.compare.comparison import compare, verdict
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.text import as_data, conclusion
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.decision import decide
from posttrain.pipeline.report.policies import read_policies
from posttrain.pipeline.report.results import results_table
from tests.pipeline.report import workspace
from tests.workspace import ROOT


def put(folder: Path, policy: str, valid: set[int], failed: tuple[int, ...] = (), like: str = "sft") -> None:
    """A policy that answers like another one, whose metric `valid` is 1 on some prompts and fails on others."""
    rows: list[dict[str, Any]] = []
    for row in workspace.rollouts(like):
        prompt = int(row["prompt_id"], 16)
        lost = prompt in failed and not row["sample"] and not row["greedy"]
        valued = {"name": "valid", "value": float(prompt in valid), "status": "error" if lost else "ok"}
        rows.append({**row, "policy": policy, "scores": [*row["scores"], valued]})
    workspace.put_policy(folder, policy, rows)


@pytest.fixture
def guarded(finished: Path) -> Path:
    """DPO answers exactly like SFT, and breaks a third of the JSON; GRPO breaks none."""
    file = finished / "params.yaml"
    settings = "reference: sft/main, metrics: [format], must_not_fall: [valid],"
    file.write_text(file.read_text().replace("reference: sft/main,", settings))
    every = set(range(workspace.PROMPTS))
    put(finished, "sft", every)
    put(finished, "dpo", set(range(20)))
    put(finished, "grpo", every, failed=(3, 4), like="grpo")
    return finished


@pytest.mark.usefixtures("guarded")
def test_a_guarded_metric_that_fell_is_said_where_the_score_cannot_tell() -> None:
    found = compare(select(["sft", "dpo"], None, "sampled"))
    (pair,), labels = found.held_out, [mean.label for mean in found.means]
    assert pair.finding.mean == 0 and [fall.label for fall in pair.falls] == ["dpo"]
    said = "valid fell from 1.000 in sft to 0.667 in dpo (-0.333, 95 % interval [-0."
    assert verdict(pair, labels).startswith(f"cannot tell; {said}")
    assert verdict(pair, labels).endswith("]; it is in must_not_fall)")
    assert f"But {said}" in conclusion(found)
    (fall,) = json.loads(json.dumps(as_data(found)))["held_out"][0]["must_not_fall"]
    assert (fall["metric"], fall["before"], round(fall["after"], 3)) == ("valid", 1.0, 0.667)
    (turned,) = compare(select(["dpo", "sft"], None, "sampled")).held_out[0].falls
    assert str(turned) == str(pair.falls[0]), "the order of the two does not matter"


def test_only_a_candidate_breaks_a_guard_against_its_reference(guarded: Path) -> None:
    """Where the trained model is better, the older one did not fall."""
    put(guarded, "sft", set(range(20)))
    for name in ("dpo", "grpo"):
        put(guarded, name, set(range(workspace.PROMPTS)))
    for names in (["grpo", "sft"], ["sft", "grpo"]):
        assert compare(select(names, None, "sampled")).held_out[0].falls == ()
    policies, _ = read_policies(read(), {})
    assert not any(fall.label == "sft" for falls in decide(policies, read()).fallen.values() for fall in falls)
    put(guarded, "dpo", set(range(5)))
    (fall,) = compare(select(["grpo", "dpo"], None, "sampled")).held_out[0].falls
    assert (fall.label, fall.than) == ("dpo", "grpo"), "neither is the reference of the other"
    assert compare(select(["grpo", "dpo"], None, "sampled"), against="dpo").held_out[0].falls == ()
    (fall,) = compare(select(["grpo", "sft"], None, "sampled"), against="grpo").held_out[0].falls
    assert fall.label == "sft", "it was named as the one to compare with"


@pytest.mark.usefixtures("guarded")
def test_a_guard_that_held_says_nothing_and_one_without_values_says_so() -> None:
    found = compare(select(["sft", "grpo"], None, "sampled"))
    assert found.held_out[0].falls == () and "fell" not in conclusion(found)
    assert "grpo: 2 completions have no value of valid and are not part of its mean" in found.notes
    found = compare(select(["base", "sft"], None, "sampled"))
    assert "must_not_fall: valid is not tested for base, because their results lack it" in found.notes


@pytest.mark.usefixtures("guarded")
def test_a_metric_is_compared_in_place_of_the_score() -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    said = run(parser("compare").parse_args(["compare", "sft", "dpo", "grpo", "--metric", "valid"]))
    assert "valid on the same 30 held-out prompts" in said
    assert "sft is better (1 seed)" in said and "note: grpo: 2 completions have no value of valid" in said
    data = json.loads(run(parser("compare").parse_args(["compare", "sft", "dpo", "--metric", "valid", "--json"])))
    assert data["held_out"][0]["mean"] == pytest.approx(1 / 3)
    with pytest.raises(DataError, match=r"sft has no metric 'vald'\. Did you mean 'valid'\?"):
        run(parser("compare").parse_args(["compare", "sft", "dpo", "--metric", "vald"]))


def test_the_results_say_it_too_with_the_interval_and_the_failures_of_a_metric(guarded: Path) -> None:
    file = guarded / "results/grpo/metrics.json"
    parts = {"reward_valid": 0.97, "reward_valid_low": 0.9, "reward_valid_high": 1.0, "reward_valid_failed": 2}
    workspace.put_json(file, {**json.loads(file.read_text()), **parts})
    policies, _ = read_policies(read(), {})
    figures = decide(policies, read()).figures()
    assert figures["dpo"]["fell_valid"] == pytest.approx(-1 / 3) and "fell_valid" not in figures["grpo"]
    shown = results_table({})
    assert "cannot tell; valid fell -0.333" in shown
    assert "0.970 [0.900, 1.000] (2 failed)" in shown and "valid low" not in shown and "valid failed" not in shown
