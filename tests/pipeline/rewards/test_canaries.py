"""A run does not start with a reward that scores known answers wrong, or that cannot be made."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.data.columns import from_rows, with_ids
from posttrain.errors import ModelError, RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.tables.store import write_table
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, Examples, NoOptions, Reward, WeightedReward, rule
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params
from posttrain.settings.params import check as params_check
from posttrain.settings.user_code import load_object
from stages import online
from tests.library.models.tiny import tiny_folder

PROMPTS = [Prompt(f"p{i}", [{"role": "user", "content": "?"}], [1], str(i)) for i in range(4)]


def examples(prompt: Prompt, options: NoOptions) -> Examples:
    return Examples([f"it is {prompt.answer}"], ["it is unknown"])


def checked(function: Callable[[Rollout, Any], Any]) -> None:
    check(rule(NoOptions, examples=examples)(function))


def check(reward: Reward[Any]) -> None:
    terms = {"mine": WeightedReward(reward=reward)}
    check_canaries(RewardSum(terms, Context(Runtime(DeviceParams()), "test")), PROMPTS, "online.runs.a")


def test_a_reward_that_scores_known_answers_right_may_start() -> None:
    checked(lambda rollout, options: float(rollout.text == f"it is {rollout.prompt.answer}"))
    checked(lambda rollout, options: Score(0.0, "unparseable") if "unk" in rollout.text else 1.0)


def test_a_prompt_that_a_reward_does_not_judge_has_no_known_completions() -> None:
    """Another reward judges it; its examples could not even be made."""

    def of_tests(prompt: Prompt, _: NoOptions) -> Examples:
        return Examples([prompt.info["tests"]], ["wrong"])

    def why(prompt: Prompt, _: NoOptions) -> str | None:
        return None if "tests" in prompt.info else "it has no tests"

    judged = rule(NoOptions, why, examples=of_tests)(lambda rollout, options: float(rollout.text != "wrong"))
    prompts = [*PROMPTS[:1], Prompt("t", [{"role": "user", "content": "?"}], [1], info={"tests": "assert f(1)"})]
    reward = RewardSum({"mine": WeightedReward(reward=judged)}, Context(Runtime(DeviceParams()), "test"))
    check_canaries(reward, prompts, "online.runs.a")


@pytest.mark.slow
def test_a_cascade_passes_on_what_its_first_reward_cannot_read() -> None:
    class Settings(Params):
        reward: Rewards

    of = {"correct": {"answer": "math"}, "length": {"limit": 500}}
    terms = params_check(Settings, {"reward": {"cascade": {"of": of}}}, where="online.runs.a").reward
    question = "What is $17^2$, and is it odd?"
    prompts = [Prompt("p", [{"role": "user", "content": question}], [1], gold) for gold in ("289", "no solution")]
    check_canaries(RewardSum(terms, Context(Runtime(DeviceParams()), "test")), prompts, "online.runs.a")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rollout, options: 0.0, "a right completion of prompt p0 scores 0: 'it is 0'"),
        (lambda rollout, options: 1.0, "a wrong completion of prompt p0 scores 1: 'it is unknown'"),
        (lambda rollout, options: Score(0.0, "unparseable", "no box"), "scores 0 (unparseable: no box)"),
    ],
)
def test_a_reward_that_does_not_stops_the_run_with_examples(function: Any, said: str) -> None:
    with pytest.raises(RewardError, match=re.escape(said)) as caught:
        checked(function)
    assert caught.value.where == "online.runs.a.reward.mine" and "docs/rewards.md" in str(caught.value)


FAILING = """
from posttrain.rewards.reward import Examples, rule

@rule(examples=lambda prompt, options: Examples([prompt.answer], ["x"]))
def good(rollout, options):
    return len(rollout.reply)

@rule(examples=lambda prompt, options: Examples([prompt.reply]))
def unsure(rollout, options):
    return 1.0
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "good",
            ["failed on 8 of 8 completions", "AttributeError: 'Rollout' object has", "(raising_reward.py line 6)"],
        ),
        ("unsure", ["its `examples` raised AttributeError: 'Prompt' object has", "(raising_reward.py line 8)"]),
    ],
)
def test_a_reward_that_raises_is_said_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "raising_reward", raising=False)
    Path("custom").mkdir()
    Path("custom/raising_reward.py").write_text(FAILING)
    with pytest.raises(RewardError) as caught:
        check(load_object(f"raising_reward:{name}", "reward"))
    assert all(part in str(caught.value) for part in said) and "canaries: 0" not in str(caught.value)


def broken(options: NoOptions, context: Context) -> Any:
    raise OSError("no dictionary is installed")


def test_a_reward_that_cannot_be_made_is_refused_where_it_judges_a_prompt() -> None:
    terms = {"mine": WeightedReward(reward=Reward(broken))}
    reward = RewardSum(terms, Context(None, "online.runs.a"))
    with pytest.raises(RewardError, match=r"online\.runs\.a\.reward\.mine: it raised OSError: no dictionary"):
        reward.load(PROMPTS)
    reward.load([])
    terms = {"mine": WeightedReward(reward=Reward(broken, cannot_score=lambda prompt, options: "empty"))}
    RewardSum(terms, Context(None, "online.runs.a")).load(PROMPTS)


@pytest.mark.parametrize(
    "settings",
    [
        {"reward": {"model": 1.0}},
        {"reward": {"cascade": {"of": {"correct": 1.0, "model": 1.0}}}},
        {"reward": {"correct": 1.0}, "watch": {"reward": {"model": 1.0}, "prompts": 2}},
    ],
)
def test_a_language_model_as_reward_model_is_refused_before_anything_is_written(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_folder(tmp_path / "made")
    for place in ("models/sft/main", "models/reward/main"):
        shutil.copytree(model, place)
    shared = {"info": "{}", "task": "", "answer": "7"}
    splits = ["train"] * 8 + ["heldout"] * 8
    rows = [
        {"split": split, "problem": f"{nth}", "prompt": [{"role": "user", "content": f"{nth}+1"}], **shared}
        for nth, split in enumerate(splits)
    ]
    write_table(with_ids(from_rows(rows, "prompts"), "prompts"), Path("data/own/prompts.parquet"), "prompts")
    inputs = {"start": "sft/main", "data": "own/prompts", "corpus": "none", "reward_model": "reward/main"}
    rollout = {"prompts": 2, "group_size": 2, "minibatches": 1, "rounds": 1, "sampling": {"max_tokens": 4}}
    run = {"algorithm": "grpo", **inputs, "rollout": rollout, **settings}
    Path("params.yaml").write_text(json.dumps({"online": {"runs": {"a": run}}}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ModelError, match=r"models/reward/main: Qwen3ForCausalLM is not a reward model"):
        online.main("a")
    assert sorted(tmp_path.rglob("*")) == before
