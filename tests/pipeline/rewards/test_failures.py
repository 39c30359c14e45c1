"""A score that failed leaves the batch and the metrics, never counts as 0, and too many end the run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import pytest
import torch

from posttrain.data.columns import with_ids
from posttrain.errors import ParamsError, RewardError
from posttrain.evaluate.metrics import evaluation_metrics, rollouts_table, summary
from posttrain.evaluate.policy import Evaluation
from posttrain.files import read_finite_json
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.lineage.recompute import evaluated
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.pipeline.runs.evaluation_stage import EvaluationStage
from posttrain.pipeline.tables.store import check_table
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import check
from tests.library.models.tiny import rollout_of
from tests.workspace import ROOT

FAILED = Score(1.0, "infrastructure", "no server")


def reward_of(score: Callable[[Rollout], Score | float], **terms: Any) -> RewardSum:
    """A reward `one` with these scores."""
    reward: Reward[Any] = Reward(lambda options, context: lambda rollouts: [score(one) for one in rollouts])
    return RewardSum({"one": WeightedReward(reward=reward, **terms)}, Context(Runtime(DeviceParams()), "test"))


def by_text(rollout: Rollout) -> Score | float:
    return FAILED if rollout.text == "down" else float(rollout.text)


def limit(reward: RewardSum, most: float = 0.1) -> FailureLimit:
    return FailureLimit(reward, most, "online.runs.a")


def test_a_failed_score_has_no_sum() -> None:
    reward = reward_of(by_text)
    fine, down = reward.score([rollout_of("1"), rollout_of("down")])
    assert reward.failure(fine) is None and reward.failure(down) == ("one", FAILED)
    assert reward.total(fine) == 1.0 and reward.means([fine, down]) == {"one": 1.0}
    with pytest.raises(ValueError, match="status infrastructure"):
        reward.total(down)


def test_a_reward_that_only_measures_may_fail() -> None:
    reward = reward_of(by_text, weight=0.0)
    (down,) = reward.score([rollout_of("down")])
    assert reward.failure(down) is None and reward.total(down) == 0.0


def test_a_few_failures_are_left_out_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    reward = reward_of(by_text)
    texts = ["1"] * 19 + ["down"] + ["0"] * 20
    assert limit(reward).check(reward.score([rollout_of(text) for text in texts])) == [*range(19), *range(20, 40)]
    printed = capsys.readouterr().err
    for part in ("online.runs.a: 1 of 40 completions", "'one' (infrastructure: no server; prompt p0", "left out"):
        assert part in printed


@pytest.mark.parametrize(("texts", "ends"), [(["down"] * 4 + ["1"] * 36, False), (["down"] * 5 + ["1"] * 35, True)])
def test_a_run_ends_where_failures_pass_the_limit(texts: Sequence[str], ends: bool) -> None:
    reward = reward_of(by_text)
    rollouts = reward.score([rollout_of(text) for text in texts])
    if ends:
        with pytest.raises(RewardError, match=r"12% of the last 40 exceed max_failed = 0\.1\. Fix the reward"):
            limit(reward).check(rollouts)
    else:
        assert len(limit(reward).check(rollouts)) == 36


def test_a_round_without_any_score_ends_whatever_the_limit_is() -> None:
    reward = reward_of(by_text)
    counted = limit(reward, 0.99)
    counted.check(reward.score([rollout_of("1")] * 40))
    with pytest.raises(RewardError, match=r"2 of 2 .*Nothing is left to train on or to measure, whatever max_failed"):
        counted.check(reward.score([rollout_of("down")] * 2))


def test_small_rounds_are_counted_together() -> None:
    reward = reward_of(by_text)
    counted = limit(reward, 0.095)
    fine, half = (reward.score([rollout_of(text) for text in texts]) for texts in ("1111", ("1", "down", "1", "1")))
    for _ in range(12):
        counted.check(fine)
    for _ in range(5):
        counted.check(half)  # 5 of 68
    resumed = limit(reward, 0.095)
    resumed.load(counted.tensor())
    resumed.check(half)  # 6 of 72
    resumed.check(half)  # 7 of 76
    with pytest.raises(RewardError, match="10% of the last 80 exceed max_failed"):
        resumed.check(half)
    with pytest.raises(RewardError, match="4 of 4 completions"):
        limit(reward, 1.0).check(reward.score([rollout_of("down")] * 4))


def test_old_failures_are_forgotten() -> None:
    reward = reward_of(by_text)
    counted = limit(reward)
    mixed, fine = (
        reward.score([rollout_of(text) for text in texts]) for texts in (["down"] * 4 + ["1"] * 60, "1" * 64)
    )
    counted.check(mixed)
    for _ in range(20):
        counted.check(fine)
    assert counted.failed < 0.1 and counted.total == pytest.approx(256)


def sampled(*texts: str, greedy: str = "1") -> tuple[list[Rollout], list[Rollout]]:
    """Four samples of each of two prompts, and a greedy one of each."""
    prompts = [Prompt(f"p{i}", [{"role": "user", "content": "?"}], [1], "1", problem=f"p{i}") for i in range(2)]
    rollouts = [replace(rollout_of(text), prompt=prompts[i // 4], sample=i % 4) for i, text in enumerate(texts)]
    return rollouts, [replace(rollout_of(greedy), prompt=one) for one in prompts]


def test_an_evaluation_leaves_failures_out_of_every_mean() -> None:
    reward = reward_of(by_text)
    drawn, greedy = (reward.score(part) for part in sampled("1", "1", "0", "0", "1", "down", "down", "down"))
    metrics = evaluation_metrics(reward, drawn, greedy, 0)
    assert metrics["score"] == metrics["pass_at_1"] == pytest.approx((0.5 + 1.0) / 2)
    assert metrics["failed"] == pytest.approx(3 / 8) and metrics["parsed"] == 1.0
    table = with_ids(rollouts_table("a", drawn, reward, greedy=False), "rollouts")
    assert table["reward"].to_list() == [1, 1, 0, 0, 1, None, None, None]
    assert table["status"].to_list()[-1] == "infrastructure"
    check_table(table, "rollouts", "results/a/rollouts.parquet")
    clean, greedy = (reward.score(part) for part in sampled("1", "1", "0", "0", "1", "1", "1", "1"))
    assert "failed" not in evaluation_metrics(reward, clean, greedy, 0)


@pytest.mark.parametrize("failing", [{"weight": 1.0}, {"gate": True}])
def test_a_failure_has_the_status_of_a_row_whatever_the_rewards_before_it_say(failing: dict[str, Any]) -> None:
    """A row without a score needs a status that says why, also where another part could not read the answer."""
    unread: Reward[Any] = Reward(lambda options, context: lambda rollouts: [Score(0.0, "unparseable")] * len(rollouts))
    down: Reward[Any] = Reward(lambda options, context: lambda rollouts: [FAILED] * len(rollouts))
    terms = {"unread": WeightedReward(reward=unread), "down": WeightedReward(reward=down, **failing)}
    reward = RewardSum(terms, Context(Runtime(DeviceParams()), "test"))
    rollouts = reward.score(sampled("1")[0])
    table = with_ids(rollouts_table("a", rollouts, reward, greedy=False), "rollouts")
    assert (table["reward"].to_list(), table["status"].to_list()) == ([None], ["infrastructure"])
    check_table(table, "rollouts", "results/a/rollouts.parquet")


def test_a_metric_that_never_scored_has_a_count_and_ends_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no mean: metrics.json is JSON, which has no NaN."""
    monkeypatch.chdir(tmp_path)
    reward = reward_of(by_text)
    down: Reward[Any] = Reward(lambda options, context: lambda rollouts: [FAILED] * len(rollouts))
    reward.terms["watched"] = WeightedReward(reward=down, weight=0.0)
    drawn, greedy = (reward.score(part) for part in sampled("1", "1", "0", "0", "1", "0", "down", "down"))
    metrics = evaluation_metrics(reward, drawn, greedy, 0)
    params = EvaluateParams(data="a/prompts", reference="none", reward_model="none")
    stage = EvaluationStage("evaluate@a", "evaluate.settings", "sft/main", params)
    stage.save(Evaluation(metrics, drawn, greedy, reward))
    found = read_finite_json(Path("results/a/metrics.json"))
    assert found["score"] == 0.5 and "reward_watched" not in found
    assert found["reward_watched_failed"] == 6, "of the completions that have a score"
    assert "nan" not in capsys.readouterr().out
    with pytest.raises(RewardError, match=r"8 of 8 completions have no value of metric 'watched'.*whatever max_failed"):
        limit(reward, 0.9).check([*drawn, *greedy])


def broken(share: int) -> RewardSum:
    """A reward by the text, and a metric that raises on so many of 100 completions and is 0.5 on the others."""

    def raises(rollouts: Sequence[Rollout]) -> list[Score | float]:
        numbers = [int(rollout.prompt.id.removeprefix("p")) for rollout in rollouts]
        return [Score(0.0, "error", "it raised") if number < share else 0.5 for number in numbers]

    reward = reward_of(by_text)
    reward.terms["valid"] = WeightedReward(reward=Reward(lambda options, context: raises), weight=0.0)
    return reward


def hundred(reward: RewardSum) -> list[Rollout]:
    prompts = [Prompt(f"p{nth}", [{"role": "user", "content": "?"}], [1], "1", problem=f"p{nth}") for nth in range(100)]
    return reward.score([replace(rollout_of("1"), prompt=prompt) for prompt in prompts])


def test_a_metric_that_fails_often_ends_the_run_and_a_rare_failure_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It used to be averaged over the rows that survived, without a word."""
    reward = broken(32)
    with pytest.raises(
        RewardError, match=r"32 of 100 completions have no value of metric 'valid'.*32% of the last 100"
    ):
        limit(reward).check(hundred(reward))
    reward = broken(3)
    assert limit(reward).check(hundred(reward)) == list(range(100)), "the completions keep their score"
    printed = capsys.readouterr().err
    assert "3 of 100 completions have no value of metric 'valid', the first (error: it raised; prompt p0" in printed
    assert "They are left out of its mean" in printed


def test_small_rounds_count_the_failures_of_a_metric_together_and_a_checkpoint_keeps_them() -> None:
    reward = broken(20)
    scored, counted = hundred(reward), limit(reward, 0.15)
    for start in range(0, 16, 4):
        counted.check([*scored[start : start + 4], *scored[60 : 60 + 28]])
    resumed = limit(reward, 0.15)
    resumed.load(counted.tensor())
    with pytest.raises(RewardError, match="of the last 148 exceed max_failed"):
        resumed.check([*scored[:18], *scored[90:92]])


def test_a_metrics_failures_stand_next_to_its_mean_with_an_interval() -> None:
    reward = broken(3)
    drawn = hundred(reward)
    metrics = evaluation_metrics(reward, drawn, drawn, 0)
    assert metrics["reward_valid"] == 0.5 and metrics["reward_valid_failed"] == 3
    assert metrics["reward_valid_low"] == metrics["reward_valid_high"] == 0.5
    assert "valid 0.500 (3 failed)" in summary("a", metrics)
    frame = with_ids(rollouts_table("a", drawn, reward, greedy=False), "rollouts")
    again = evaluated(frame, 0)
    assert {key: again[key] for key in metrics if key.startswith("reward_valid")} == {
        key: metrics[key] for key in metrics if key.startswith("reward_valid")
    }


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"reward": {"correct": 1.0, "format": 0.0}}, r"format: with weight 0 it is a metric.*metrics: \[format\]"),
        ({"metrics": {"format": 0.0}}, r"'format' is 0\.0: a metric only has options"),
        ({"metrics": {"format": {"weight": 0.0}}}, r"'format' has weight: a metric only has options"),
        ({"metrics": {"format": {"gate": True}}}, "'format' has gate"),
        ({"metrics": ["correct"], "reward": {"correct": 1.0}}, "'correct' is in reward and in metrics"),
        ({"metrics": ["formt"]}, "unknown reward 'formt'"),
        ({"must_not_fall": ["json_schema"]}, "must_not_fall: 'json_schema' is not measured. Add it to metrics"),
    ],
)
def test_metrics_have_a_place_of_their_own(given: dict[str, Any], because: str) -> None:
    inputs = {"data": "a/prompts", "reference": "none", "reward_model": "none"}
    with pytest.raises(ParamsError, match=because):
        check(EvaluateParams, {**inputs, **given}, where="evaluate.settings")
    with pytest.raises(ParamsError, match=because):
        check(EvaluateRun, {**inputs, "policy": "sft/main", **given}, where="evaluate.runs.a")


def test_the_metric_of_the_usual_score_is_the_form_and_another_reward_has_none() -> None:
    inputs = {"data": "a/prompts", "reference": "none", "reward_model": "none"}
    assert [*check(EvaluateParams, inputs, where="e").terms] == ["correct", "format"]
    assert [*check(EvaluateParams, {**inputs, "reward": {"length": {"limit": 3}}}, where="e").terms] == ["length"]
    whole = {**inputs, "metrics": {"format": {"after": "x"}, "words": {"type": "length", "limit": 3}}}
    terms = check(EvaluateParams, whole, where="e").terms
    assert [*terms] == ["correct", "format", "words"] and terms["words"].weight == 0


def test_samples_of_a_prompt_with_a_failure_make_no_table() -> None:
    reward = reward_of(by_text)
    drawn = reward.score([rollout_of(text) for text in ("1", "0", "1", "down", "0", "1")])
    rows, rollouts = limit(reward, 0.5).complete(["a", "b", "c"], drawn)
    assert rows == ["a", "c"] and [one.text for one in rollouts] == ["1", "0", "0", "1"]


def test_a_group_without_its_failures_has_the_advantage_of_a_smaller_group() -> None:
    from posttrain.algorithms.policy.grpo import group_centred, group_zscore
    from posttrain.algorithms.policy.rloo import leave_one_out

    rewards, group = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    for advantage in (group_centred, group_zscore, leave_one_out):
        alone = torch.cat([advantage(rewards[:3], group[:3]), advantage(rewards[3:], group[3:])])
        assert torch.equal(advantage(rewards, group), alone)


def test_every_stage_that_may_wait_for_a_server_hands_it_on() -> None:
    """`on_failures: wait` of a run's settings reaches its rewards wherever they are made."""
    calls = {
        f"{file.relative_to(ROOT)}": [len(call.args) for call in ast.walk(ast.parse(file.read_text())) if made(call)]
        for folder in ("posttrain", "stages")
        for file in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {name: sizes for name, sizes in calls.items() if sizes} == {
        "posttrain/rewards/config.py": [3],
        "posttrain/online/heldout.py": [2],  # of demonstrations, whose runs have no such setting
        "posttrain/online/run.py": [3, 3],
        "posttrain/rewards/composition.py": [2],
        "posttrain/rewards/trial.py": [2],
        "posttrain/pipeline/runs/data_filters.py": [2],
    }


def made(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RewardSum"
