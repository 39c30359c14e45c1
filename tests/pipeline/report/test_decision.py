"""The main table: settings with their seeds, the best first, and their differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.evaluated import evaluated_policy
from posttrain.pipeline.compare.settings import Setting
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report import decision as module
from posttrain.pipeline.report.decision import Decision, decide
from posttrain.pipeline.report.policies import read_policies
from tests.pipeline.report import workspace


def decided() -> Decision:
    settings = read()
    found, errors = read_policies(settings, {})
    assert errors == {}
    return decide(found, settings)


def test_the_best_setting_comes_first(finished: Path) -> None:
    decision = decided()
    assert [row.setting for row in decision.rows] == ["grpo", "dpo", "sft", "base"]
    assert decision.base == "sft"
    assert decision.members == {name: (name,) for name in ("grpo", "dpo", "sft", "base")}
    assert decision.tasks({"grpo": "two_step", "other": "x"}) == {"grpo": "two_step"}
    first = decision.rows[0]
    assert (first.model, first.policies, first.trained) == ("online/grpo", ("grpo",), ("grpo",))
    assert first.figures["score"] == 0.9 and first.figures["seeds"] == 1
    assert decide([], {}) == Decision((), {}, "")


def test_differences_are_of_paired_prompts(finished: Path) -> None:
    decision = decided()
    figures = decision.figures()
    assert list(figures) == ["grpo", "dpo", "sft", "base"] and "gain" not in figures["sft"]
    mean = {
        policy: np.mean([workspace.right(policy, prompt, 0) / 2 for prompt in range(30)])
        for policy in workspace.POLICIES
    }
    for policy in ("grpo", "dpo", "base"):
        assert figures[policy]["gain"] == pytest.approx(mean[policy] - mean["sft"])
        assert figures[policy]["over_seeds"] == 0.0
    assert decision.figures("grpo")["sft"]["gain"] == pytest.approx(mean["sft"] - mean["grpo"])
    with pytest.raises(PipelineError, match="no setting 'gpro' is evaluated"):
        decision.figures("gpro")


def test_seeds_of_one_setting_are_pooled(finished: Path) -> None:
    file = finished / "params.yaml"
    params = file.read_text()
    run = "    grpo: {algorithm: grpo, start: sft/main, data: two_step/prompts, kl: {beta: 0.02}}\n"
    other = run.replace("grpo:", "grpo2:", 1).replace("{algorithm", "{seed: 2, algorithm")
    file.write_text(
        params.replace(run, run + other).replace("grpo: online/grpo}", "grpo: online/grpo, grpo2: online/grpo2}")
    )
    workspace.copy_results("dpo", "grpo2")
    pooled = next(row for row in decided().rows if len(row.policies) == 2)
    assert pooled.policies == ("grpo", "grpo2") and pooled.figures["seeds"] == 2
    mean = np.mean(
        [(workspace.right("grpo", prompt, 0) + workspace.right("dpo", prompt, 0)) / 4 for prompt in range(30)]
    )
    assert pooled.figures["score"] == pytest.approx(mean)


def test_a_metric_that_falls_is_named_and_its_seeds_are_pooled(finished: Path) -> None:
    file = finished / "params.yaml"
    file.write_text(file.read_text().replace("samples: 2}", "samples: 2, must_not_fall: [brief]}"))
    for label, value in (("base", 0.9), ("sft", 0.9), ("dpo", 0.1), ("grpo", 0.9)):
        rows = workspace.rollouts(label)
        for row in rows:
            row["scores"] = [*row["scores"], {"name": "brief", "value": value + row["sample"] / 100, "status": "ok"}]
        workspace.put_policy(finished, label, rows)
    settings = read()
    found, _ = read_policies(settings, {})
    decision = decide(found, settings)
    assert [(fall.metric, fall.label, fall.than) for fall in decision.fallen["sft"]] == [("brief", "dpo", "sft")]
    assert decision.figures()["dpo"]["fell_brief"] == pytest.approx(-0.8)
    assert module._gain(None) == {}
    read_again = [
        evaluated_policy(Path(), one.label, one.label, one.model, one.rollouts, settings, "sampled")
        for one in found[1:3]
    ]
    pooled = module._pooled(Setting("both", read_again), "brief")
    assert pooled["reward_brief"] == pytest.approx((0.905 + 0.105) / 2)
    assert pooled.keys() == {"reward_brief", "reward_brief_low", "reward_brief_high"}
    assert module._pooled(Setting("both", read_again), "long") == {}
