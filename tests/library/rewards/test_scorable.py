"""A reward is never given a prompt that it has declared it cannot judge."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from posttrain.errors import RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards.catalog import term
from posttrain.rewards.reward import Context, NoOptions, Reward, WeightedReward, rule
from posttrain.rewards.scorable import judged_prompts, scorable_prompts, unread_in, why_unread
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params
from tests.library.models.tiny import rollout_of


def no_answer(prompt: Prompt, options: Params) -> str | None:
    return None if prompt.answer else "it has no answer"


@rule(NoOptions, no_answer)
def by_answer(rollout: Rollout, options: Params) -> float:
    """1 where the completion is the answer; raises where there is none."""
    assert rollout.prompt.answer, "this prompt was declared one that cannot be scored"
    return float(rollout.text == rollout.prompt.answer)


@rule()
def always(rollout: Rollout, options: Params) -> float:
    return 1.0


def rollouts() -> list[Rollout]:
    """Of a prompt with the answer 7, and of one without."""
    fine = rollout_of("7")
    known = replace(fine, prompt=replace(fine.prompt, id="known", answer="7"))
    unknown = replace(fine, prompt=replace(fine.prompt, id="unknown", answer=""))
    return [known, unknown, known, unknown]


def sum_of(**terms: WeightedReward) -> RewardSum:
    return RewardSum(terms, Context(Runtime(DeviceParams()), "online.runs.a"))


def test_other_rewards_score_such_a_prompt_and_nothing_is_lost() -> None:
    reward = sum_of(own=WeightedReward(reward=by_answer), other=WeightedReward(reward=always, weight=0.5))
    scored = reward.score(rollouts())
    assert [one.scores["own"] for one in scored][::2] == [Score(1.0)] * 2
    why = Score(0.0, "unparseable", "it does not judge this prompt: it has no answer")
    assert [one.scores["own"] for one in scored][1::2] == [why] * 2
    assert reward.totals(scored) == [1.5, 0.5, 1.5, 0.5]
    assert not any(reward.failure(one) for one in scored)


def test_a_prompt_that_some_reward_judges_stays_and_one_that_a_gate_cannot_judge_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = [one.prompt for one in rollouts()[:2]]
    terms = {"own": WeightedReward(reward=by_answer), "other": WeightedReward(reward=always)}
    assert scorable_prompts(terms, prompts, "x") == prompts
    assert "only the other rewards judge them" in capsys.readouterr().err
    gated = {"other": WeightedReward(reward=always), "own": WeightedReward(reward=by_answer, gate=True)}
    assert scorable_prompts(gated, prompts, "x") == prompts[:1]
    assert "1 prompts are left out" in capsys.readouterr().err


def test_a_cannot_score_that_raises_is_named() -> None:
    def broken(prompt: Prompt, options: Params) -> str | None:
        raise KeyError(prompt.answer)

    reward: Reward[Params] = rule(Params, broken)(lambda rollout, options: 1.0)
    with pytest.raises(
        RewardError, match=r"reward 'own', prompt known: its `cannot_score` raised KeyError: '7'.*Fix it"
    ):
        scorable_prompts({"own": WeightedReward(reward=reward)}, [rollouts()[0].prompt], "x")


def unread_row(name: str, answer: str, split: str = "train") -> dict[str, object]:
    prompt = [{"role": "user", "content": f"question {name}"}]
    return {"id": name, "prompt": prompt, "answer": answer, "info": "{}", "task": "", "problem": name, "split": split}


FRAME = pl.DataFrame(
    [unread_row("a", "7"), unread_row("b", "red"), unread_row("c", "red"), unread_row("d", "blue", "test")]
)


def test_unread_in() -> None:
    found = unread_in(FRAME.filter(split="train"), term("correct", 1.0))
    assert (found.rows, found.of, len(found.examples)) == (2, 3, 1)
    assert found.examples[0].startswith("'red' (") and "of prompt b: " in found.examples[0]


def test_why_unread() -> None:
    correct = term("correct", 1.0)
    assert why_unread(unread_row("a", "7"), correct) is None and why_unread(unread_row("b", "red"), correct)
    assert why_unread(unread_row("b", "red"), term("correct", {"answer": "exact"})) is None


def test_prompts_that_only_lack_answers_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def prompt(name: str, answer: str) -> Prompt:
        return Prompt(name, [{"role": "user", "content": "a"}], (), answer)

    correct, blank = {"correct": term("correct", 1.0)}, [prompt("a", ""), prompt("b", "")]
    assert judged_prompts(correct, blank, "here") == blank
    assert "here: no prompt has an answer, so reward 'correct' is not measured" in capsys.readouterr().err
    some = [prompt("a", ""), prompt("b", "7")]
    assert judged_prompts(correct, some, "here") == some[1:]
    assert judged_prompts({"format": term("format", 1.0)}, blank, "here") == blank
