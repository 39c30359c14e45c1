"""Comparisons of a real workspace's files: what is told, what is refused, what is one setting."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import PosttrainError
from posttrain.pipeline.commands.compare import run
from posttrain.pipeline.commands.line import parser
from posttrain.pipeline.compare.comparison import compare, verdict
from posttrain.pipeline.compare.experiments import git
from posttrain.pipeline.compare.factors import differing
from posttrain.pipeline.compare.paired import against
from posttrain.pipeline.compare.selection import select
from posttrain.pipeline.compare.settings import meaning
from posttrain.pipeline.compare.text import as_data, as_text, conclusion
from posttrain.pipeline.lineage.recompute import evaluated
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.report.decision import decide
from posttrain.pipeline.report.policies import read_policies
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.settings.plain import flattened
from tests.pipeline.report import workspace
from tests.workspace import ROOT

SEEDS = """
preference:
  runs:
    dpo: {algorithm: dpo, start: sft/main, data: compared/pairs, beta: 0.1}
online:
  runs:
    low_1: {algorithm: grpo, seed: 1, kl: {beta: 0.02}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
    low_2: {algorithm: grpo, seed: 2, kl: {beta: 0.02}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
    low_3: {algorithm: grpo, seed: 3, kl: {beta: 0.02}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
    high_1: {algorithm: grpo, seed: 1, kl: {beta: 0.5}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
    high_2: {algorithm: grpo, seed: 2, kl: {beta: 0.5}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
    high_3: {algorithm: grpo, seed: 3, kl: {beta: 0.5}, rollout: {prompts: 4, group_size: 4, minibatches: 2}}
evaluate:
  policies:
    sft: sft/main
    dpo: preference/dpo
    low_1: online/low_1
    low_2: online/low_2
    low_3: online/low_3
    high_1: online/high_1
    high_2: online/high_2
    high_3: online/high_3
"""


def put_run(folder: Path, name: str, skill: float, *, steps: int = 40, length: float = 10.0, draw: str = "") -> None:
    """A run with a reward that rises to `skill`, the share of prompts it gets right. `draw` seeds which these are."""
    rng = np.random.default_rng(sum((draw or name).encode()))
    rows = workspace.rollouts(name)
    for row in rows:
        row["reward"] = float(rng.random() < skill)
        row["completion_ids"] = [round(100 * skill), *row["completion_ids"][1:]]  # each setting has its own completions
    write_table(from_rows(rows, "rollouts"), folder / "results" / name / "rollouts.parquet", "rollouts")
    reward = [skill * step / steps + float(rng.normal(0, 0.01)) for step in range(steps)]
    columns = {"loss": [0.1] * steps, "reward": reward, "length": [length] * steps}
    workspace.put_curve(folder / "plots/online" / f"{name}.csv", columns)


@pytest.fixture
def seeded(finished: Path) -> Path:
    """Two settings with three seeds each: low is far better; high is trained twice as long on longer texts."""
    (finished / "params.yaml").write_text(SEEDS, encoding="utf-8")
    for seed in (1, 2, 3):
        put_run(finished, f"low_{seed}", 0.9)
        put_run(finished, f"high_{seed}", 0.3, steps=80, length=20.0)
    return finished


@pytest.mark.slow
def test_runs_that_differ_only_in_seeds_are_one_setting_and_the_better_one_is_named(seeded: Path) -> None:
    found = compare(select(["low_1", "low_2", "low_3", "high_1", "high_2", "high_3"], None, "sampled"))
    assert [(mean.label, mean.seeds) for mean in found.means] == [
        ("low", 3),
        ("high", 3),
    ]
    (pair,) = found.held_out
    assert verdict(pair, [mean.label for mean in found.means]) == "low is better"
    assert 0.3 < pair.finding.low < pair.finding.mean < pair.finding.high < 0.8
    assert conclusion(found) == "Best on the held-out prompts: low."


@pytest.mark.parametrize(("epochs", "labels"), [("2.0", {"low", "high"}), ("3.0", {"low_1", "low_2", "high"})])
def test_runs_that_start_from_other_seeds_of_one_run_are_one_setting(
    seeded: Path, epochs: str, labels: set[str]
) -> None:
    settings = seeded / "params.yaml"
    sft = "sft: {runs: {one: {epochs: 2.0, seed: 1}, two: {epochs: " + epochs + ", seed: 2}}}\n"
    text = settings.read_text().replace("low_1: {algorithm", "low_1: {start: sft/one, algorithm")
    settings.write_text(sft + text.replace("low_2: {algorithm", "low_2: {start: sft/two, algorithm"))
    found = compare(select(["low_1", "low_2", "high_1", "high_2"], None, "sampled"))
    assert {mean.label for mean in found.means} == labels


@pytest.mark.slow
def test_training_is_compared_at_equal_steps_and_equal_tokens(seeded: Path) -> None:
    found = compare(select(["low_1", "low_2", "low_3", "high_1", "high_2", "high_3"], None, "sampled"))
    steps, tokens, seconds = found.training
    assert steps.at.amount == 40
    # 4 prompts x 4 samples over 2 minibatches: 8 completions a step, of 10 tokens.
    assert tokens.at.amount == 40 * 8 * 10
    # At 40 of its 80 steps the longer run is half way up; at equal tokens it is a quarter up.
    assert np.mean(steps.at.values[1]) == pytest.approx(0.3 / 2, abs=0.03)
    assert np.mean(tokens.at.values[1]) == pytest.approx(0.3 / 4, abs=0.03)
    assert seconds.at.why_not.startswith("no seconds known for low_1")
    assert any("steps differ up to 2.00x" in note for note in found.notes)
    how = "reward, first minus second. The intervals cover other seeds, not other test sets or start models. They are "
    how += "corrected for 1 comparison (Holm)"
    assert f"In training at equal steps (40 steps): {how}\n" in as_text(found, "sampled")
    assert as_data(found)["training"]["tokens"]["metric"] == "reward"


@pytest.mark.slow
def test_an_unknown_name_is_refused_with_a_suggestion(seeded: Path) -> None:
    git("init", "--quiet")
    with pytest.raises(PosttrainError, match=r"names the experiments\. Did you mean 'low_\d'\?$"):
        select(["low_7"], None, "sampled")


@pytest.mark.slow
def test_seconds_come_from_the_sweep(seeded: Path) -> None:
    for name, seconds in (("low_1", 20.0), ("high_1", 80.0)):
        workspace.put_json(seeded / ".sweeps" / f"{name}.json", {f"online@{name}": seconds, "report": 2.0})
    found = compare(select(["low_1", "high_1"], None, "sampled"))
    assert [mean.spent["seconds"] for mean in found.means] == [20.0, 80.0]
    assert found.training[2].at.amount == 20.0
    assert "In training at equal seconds (20 s): cannot tell, because each setting has one seed" in as_text(
        found, "sampled"
    )


@pytest.mark.slow
def test_the_seconds_of_a_policy_of_the_workspace_are_those_that_its_stage_took(seeded: Path) -> None:
    record = seeded / "records/online/low_1.json"
    workspace.put_json(record, {"stage": "online@low_1", "seed": 1})
    workspace.put_timings(seeded, "online@low_1", 12.5)
    assert select(["low_1"], None, "sampled")[0].seconds == 12.5
    workspace.put_json(record, {"stage": "online@low_1", "seed": 2})
    assert select(["low_1"], None, "sampled")[0].seconds is None, "that run is another one"


@pytest.mark.slow
def test_a_policy_is_named_by_its_label_or_its_model(seeded: Path) -> None:
    assert [one.policy for one in select(["online/low_1", "sft"], None, "sampled")] == ["low_1", "sft"]


@pytest.mark.slow
def test_two_seeds_are_said_to_be_few(seeded: Path) -> None:
    names = [f"{side}_{seed}" for side in ("low", "high") for seed in (1, 2, 3)]
    words = as_text(compare(select(names, None, "sampled")), "sampled")
    assert "seeds of" not in words
    words = as_text(compare(select(["low_1", "low_2", "high_1", "high_2"], None, "sampled")), "sampled")
    assert "note: 2 seeds: low, high. Two seeds can show only large differences" in words


@pytest.mark.slow
def test_the_winners_experiment_is_named_with_the_command_that_brings_its_weights(seeded: Path) -> None:
    names = [f"{side}_{seed}" for side in ("low", "high") for seed in (1, 2, 3)]
    found = [replace(one, weights=f"dvc exp apply {one.name}") for one in select(names, None, "sampled")]
    best = max(found, key=lambda one: float(one.scores_P.mean())).name
    said = conclusion(compare(found))
    assert said.endswith(f"low. To fetch the weights of its best seed: `dvc exp apply {best}`.")


@pytest.mark.slow
def test_one_training_has_the_interval_of_its_evaluation(seeded: Path) -> None:
    settings = seeded / "params.yaml"
    settings.write_text(settings.read_text() + "  settings: {seed: 7}\n")
    (mean,) = compare(select(["low_1"], None, "sampled")).means
    figures = evaluated(read_table(seeded / "results/low_1/rollouts.parquet", "rollouts"), seed=7)
    assert (mean.low, mean.high) == pytest.approx((figures["score_low"], figures["score_high"]))
    words = as_text(compare(select(["low_1", "high_1"], None, "sampled")), "sampled")
    assert "95 % over prompts  " in words
    words = as_text(compare(select(["low_1", "low_2", "high_1"], None, "sampled")), "sampled")
    assert "95 % over prompts and seeds  " in words


@pytest.mark.slow
def test_scores_beyond_1_are_not_limited(finished: Path) -> None:
    workspace.graded(finished)
    found = compare(select(["sft", "grpo"], None, "sampled"))
    best = found.means[0]
    assert best.low < best.value < best.high and best.high > 1
    assert found.held_out[0].finding.mean > 1 and found.held_out[0].finding.high > found.held_out[0].finding.mean


@pytest.mark.slow
def test_with_one_seed_only_the_trainings_differ_and_not_the_settings(finished: Path) -> None:
    found = compare(select([], None, "sampled"))
    words = as_text(found, "sampled")
    assert "grpo is better (1 seed)" in words and "(1 seed): one side has a single training" in words
    assert words.splitlines()[-1].startswith("Best training: grpo. One training does not judge a setting")
    assert "In training" not in words, "their curves share no metric"
    data: dict[str, Any] = json.loads(json.dumps(as_data(found)))
    assert data["held_out"][0]["verdict"].endswith("is better (1 seed)")
    assert data["training"]["steps"] == {"cannot_tell": "their curves share no reward or accuracy"}


@pytest.mark.slow
def test_a_policy_without_readable_answers_is_not_compared(finished: Path) -> None:
    assert not any("not compared" in note for note in compare(select([], None, "sampled")).notes)
    mute = [
        {**row, "completion": "It is seven.", "reward": 0.0, "status": "unparseable"}
        for row in workspace.rollouts("grpo")
    ]
    workspace.put_policy(finished, "grpo", mute)
    found = compare(select([], None, "sampled"))
    assert "grpo" not in {mean.label for mean in found.means}
    assert len(found.held_out) == len(found.means) * (len(found.means) - 1) / 2
    words = as_text(found, "sampled")
    assert re.search(r"note: grpo is not compared, because none of its completions has a readable answer", words)


def by_task(folder: Path, policies: tuple[str, ...]) -> None:
    """The first half of the prompts are sums, which every policy but the first solves; the rest nobody solves."""
    for policy in policies:
        rows = [
            {**row, "task": "sums", "reward": float(policy != policies[0])}
            if int(row["answer"]) <= workspace.PROMPTS // 2
            else {**row, "task": "products", "reward": 0.0}
            for row in workspace.rollouts(policy)
        ]
        workspace.put_policy(folder, policy, rows)


@pytest.mark.slow
def test_only_the_prompts_of_one_task_are_compared(finished: Path) -> None:
    by_task(finished, ("sft", "grpo"))
    half = workspace.PROMPTS // 2
    sums, products = (compare(select(["sft", "grpo"], None, "sampled", [task])) for task in ("sums", "products"))
    assert (sums.prompts, products.prompts) == (half, workspace.PROMPTS - half)
    assert {mean.label: mean.value for mean in sums.means} == {"grpo": 1.0, "sft": 0.0}
    assert [mean.value for mean in products.means] == [0.0, 0.0]
    whole = compare(select(["sft", "grpo"], None, "sampled", ["sums", "products"]))
    assert whole.means[0].value == pytest.approx(half / workspace.PROMPTS)
    with pytest.raises(PosttrainError, match=r"sft: no prompt has the task 'sum'.*Did you mean 'sums'\?"):
        select(["sft", "grpo"], None, "sampled", ["sum"])


@pytest.mark.slow
def test_against_compares_every_setting_with_one(seeded: Path) -> None:
    measured = select(["sft", "low_1", "high_1"], None, "sampled")
    assert len(compare(measured).held_out) == 3
    found = compare(measured, "sft")
    assert len(found.held_out) == 2
    with pytest.raises(PosttrainError, match="Did you mean 'low_1'"):
        compare(measured, "low_7")


@pytest.mark.slow
def test_identical_trainings_count_as_one_seed(seeded: Path) -> None:
    workspace.copy_results("low_1", "low_2", seeded)
    shutil.copyfile(seeded / "plots/online/low_1.csv", seeded / "plots/online/low_2.csv")
    found = compare(select(["low_1", "low_2", "high_1", "high_2"], None, "sampled"))
    assert [mean.seeds for mean in found.means] == [1, 2]
    assert any("2 trainings, of which 1 is distinct" in note for note in found.notes)
    assert "(1 seed)" in verdict(found.held_out[0], [mean.label for mean in found.means])


@pytest.mark.slow
def test_other_prompts_are_refused(finished: Path) -> None:
    workspace.put_policy(finished, "grpo", workspace.rollouts("grpo", first_prompt=5))
    with pytest.raises(PosttrainError, match=re.escape("evaluated on different prompts (25 in common)")):
        select(["dpo", "grpo"], None, "sampled")


@pytest.mark.slow
def test_greedy_compares_the_greedy_completions(finished: Path) -> None:
    sampled, greedy = (select(["grpo"], None, score)[0].scores_P for score in ("sampled", "greedy"))
    assert sampled[1] == 0.5 and greedy[1] == 1.0
    assert conclusion(compare(select(["grpo"], None, "greedy"))) == "There is only one setting: nothing to compare."


def without_score(folder: Path, policy: str, prompt: int) -> None:
    """No completion of this prompt could be scored, as a sandbox was down."""
    rows = workspace.rollouts(policy)
    for row in rows[3 * prompt : 3 * prompt + 3]:
        row |= {"reward": None, "status": "infrastructure"}
    workspace.put_policy(folder, policy, rows)


def test_prompts_without_a_score_are_left_out_of_a_pair(finished: Path) -> None:
    whole = compare(select(["dpo", "sft", "grpo"], None, "sampled"))
    without_score(finished, "dpo", 6)
    found = compare(select(["dpo", "sft", "grpo"], None, "sampled"))
    assert "dpo: 1 of 30 prompts have no score. Its differences leave them out" in found.notes
    assert [mean.label for mean in found.means] == ["grpo", "dpo", "sft"] and found.prompts == 30
    assert found.means[1].value == pytest.approx((15 - 1) / 2 / 29)  # dpo is right half of the time on every second one
    against_dpo, _, between = (pair.finding.mean for pair in found.held_out)
    assert against_dpo == pytest.approx((29 - 1 - 14) / 2 / 29)
    assert between == pytest.approx((14 - 9) / 2 / 29)
    assert found.held_out[1] == whole.held_out[1], "grpo and sft have all their scores"


def test_the_report_keeps_the_gains_of_a_policy_with_a_prompt_without_a_score(finished: Path) -> None:
    without_score(finished, "sft", 0)
    without_score(finished, "grpo", 6)
    settings = read()
    policies, errors = read_policies(settings, {})
    figures = decide(policies, settings).figures()
    assert not errors and figures["grpo"]["gain"] == pytest.approx((28 - 9 + 1) / 2 / 28)
    gains = against(policies[1].rollouts, {"grpo": policies[3].rollouts})
    assert gains["grpo"].mean == figures["grpo"]["gain"]


def test_greedy_is_refused_where_there_are_no_greedy_completions(finished: Path) -> None:
    rows = [row for row in workspace.rollouts("grpo") if not row["greedy"]]
    workspace.put_policy(finished, "grpo", rows)
    with pytest.raises(PosttrainError, match=r"grpo: no greedy completion has a score\. Remove --greedy"):
        select(["dpo", "grpo"], None, "greedy")


def test_a_training_of_one_seed_has_no_interval_of_its_metric(seeded: Path) -> None:
    found = compare(select(["low_1", "low_2", "high_1"], None, "sampled"))
    data = as_data(found)
    assert data["held_out"][0]["p_value"] < 0.05
    single = {"left": "low", "right": "high_1", "verdict": "cannot tell (1 seed)"}
    assert data["training"]["steps"]["pairs"] == [single]
    assert "In training at equal steps (40 steps): cannot tell" in as_text(found, "sampled")


def test_results_that_are_not_current_are_no_seeds_of_those_that_are(seeded: Path) -> None:
    low, other, high = select(["low_1", "low_2", "high_1"], None, "sampled")
    pooled = [setting["names"] for setting in as_data(compare([low, other, high]))["settings"]]
    assert ("low_1", "low_2") in pooled
    old = replace(other, is_current=False)
    assert sorted(setting["label"] for setting in as_data(compare([low, old, high]))["settings"]) == [
        "high_1",
        "low_1",
        "low_2 (not current)",
    ]
    both = [replace(one, is_current=False) for one in (low, other)]
    assert [setting["names"] for setting in as_data(compare([*both, high]))["settings"]] == pooled


def test_results_that_are_not_current_are_named(finished: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    asked = parser("compare").parse_args(["compare", "dpo", "grpo"])
    said = run(asked)
    for label in ("dpo", "grpo"):
        assert f"note: {label}: its results are not current (out of date: " in said
    assert "sft: its results" not in said
    asked.json = True
    assert json.loads(run(asked))["notes"][0].startswith("dpo: its results are not current")


@pytest.mark.parametrize(
    ("then", "now", "keys"),
    [
        ("reward: {correct: 1.0}", "reward: {correct: 1.0, format: 0.2}", ["reward.format"]),
        ("sampling: {temperature: 1.0}", "sampling: {max_tokens: 9}", ["sampling.temperature", "sampling.max_tokens"]),
        ("date: 1 May 2026", "context: [{role: system, content: Think}]", ["date", "context"]),
        ("reward: {correct: 1.0}", "reward: {correct: 1.0, format: 0.0, regex: {weight: 0.0, pattern: a}}", []),
        ("reward: {correct: 1.0}", "reward: {correct: 1.0}, metrics: [format], must_not_fall: [format]", []),
        ("device: {type: cpu}, engine: vllm, seed: 1", "completions: none, samples: 4, max_failed: 0.2", []),
    ],
)
def test_settings_that_change_what_a_score_means(finished: Path, then: str, now: str, keys: list[str]) -> None:
    (policy,) = select(["grpo"], None, "sampled")
    found = []
    for own in (then, now):
        Path("changed.yaml").write_text(f"evaluate: {{policies: {{grpo: a/b}}, settings: {{{own}}}}}", encoding="utf-8")
        found.append(meaning(replace(policy, settings=flattened(read_yaml("changed.yaml")))))
    assert differing(found) == keys
