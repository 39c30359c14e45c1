"""The true reward and the proxy of a policy on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.evaluate.watch_rules import Measured
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.online.heldout import HeldoutRewards, sampled_demonstrations, terms_of
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, encode_prompts
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models.tiny import TEXTS, rollout_of, tiny_model

CPU = Runtime(DeviceParams(device="cpu"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def length(rollouts: Sequence[Rollout]) -> list[Any]:
    return [Score(0.0, "error", "no") if one.text == "bad" else float(len(one.text)) for one in rollouts]


def one(rollouts: Sequence[Rollout]) -> list[float]:
    return [1.0] * len(rollouts)


def reward(function: Any, **measured: Any) -> RewardSum:
    terms = {"first": WeightedReward(reward=Reward(lambda options, context: function))}
    terms |= {name: WeightedReward(weight=0.0, reward=Reward(lambda options, context, by=by: by))
              for name, by in measured.items()}  # fmt: skip
    return RewardSum(terms, Context(CPU, "online.runs.a.watch"))


def measure(text: ChatText, true: RewardSum, proxy: RewardSum) -> HeldoutRewards:
    policy = tiny_model(vocabulary=len(text.tokenizer))
    asked = [Prompt(f"p{nth}", [{"role": "user", "content": f"{nth}+1"}], ()) for nth in range(3)]
    return HeldoutRewards(
        LocalSampler(policy, text.stops, CPU), policy, text, encode_prompts(text, asked), SamplingParams(max_tokens=3),
        samples=2, seed=0, rewards=(true, proxy), max_failed=0.9, where="here",
    )  # fmt: skip


def test_each_prompt_has_its_mean_rewards(text: ChatText) -> None:
    true = reward(length, other=one)
    held = measure(text, true, reward(one))
    found = held()
    assert isinstance(found, Measured) and found.proxy_P.tolist() == [1.0] * 3 and len(found.true_P) == 3
    assert held.sampler.version == "here evaluation 1" and any("other" in name for name in found.figures)
    again = held()
    assert again.true_P.tolist() == found.true_P.tolist() and held.sampler.version == "here evaluation 2"
    same = measure(text, true, true)()
    assert same.proxy_P.tolist() == same.true_P.tolist() == found.true_P.tolist()


def test_samples_without_a_score_do_not_count(text: ChatText) -> None:
    held = measure(text, reward(length), reward(one))
    some = [rollout_of(words) for words in ("a", "abc", "bad", "ab", "bad", "bad")]
    means, scored, kept = held._scored(reward(length), some)
    assert means[:2].tolist() == [2.0, 2.0] and np.isnan(means[2]) and kept == {0, 1, 3}
    assert [rollout.scores["first"].status for rollout in scored] == ["ok", "ok", "error", "ok", "error", "error"]
    assert held._per_prompt([1.0, 3.0, np.nan, 4.0, 0.0, 0.0]).tolist() == [2.0, 4.0, 0.0]


def test_metrics_of_the_scored_samples(text: ChatText) -> None:
    true = reward(one, words=length)
    held = measure(text, true, true)
    some = true.score([rollout_of(words) for words in ("a", "abc", "bad", "ab", "abcd", "abcd")])
    found = held._metrics(some, {0, 1, 2, 3, 4})
    assert measure(text, reward(one), reward(one))._metrics([], []) == {}
    (mean,) = (value for name, value in found.items() if name.endswith("words"))
    assert mean == pytest.approx((1 + 3 + 2 + 4) / 4, abs=0.7), "of the scored samples alone"


def test_rewards_of_a_run_without_a_reward_model() -> None:
    rewards, metrics = terms_of({"format": 1.0}, ["repetition"])
    assert ([*rewards], [*metrics]) == (["format"], ["repetition"]) and terms_of({"format": 1.0}, None)[1] == {}
    with pytest.raises(ValueError, match="reward 'model' needs a reward model or normalise"):
        terms_of({"model": 1.0}, None)


def test_prompts_of_demonstrations_are_sampled_too(text: ChatText) -> None:
    models = SimpleNamespace(policy=tiny_model(vocabulary=len(text.tokenizer)), runtime=CPU)
    run: Any = SimpleNamespace(models=models, params=SimpleNamespace(seed=0))
    params: Any = SimpleNamespace(reward=terms_of({"format": 1.0}, None)[0], metrics={}, max_tokens=3, samples=2)
    messages = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    row = {"id": "r0", "messages": messages, "problem": "", "tools": None, "chat_template_kwargs": None}
    rows = pl.DataFrame([row, {**row, "id": "r1"}], schema_overrides={"tools": pl.String})
    losses = Measured(np.zeros(2), np.array([5.0, 6.0]), {"heldout_loss": 5.5})
    found = sampled_demonstrations(run, params, lambda: losses, rows, text, "sft.runs.a.watch")()
    assert found.proxy_P.tolist() == [5.0, 6.0] and found.figures["heldout_loss"] == 5.5 and len(found.true_P) == 2
    with pytest.raises(DataError, match="row r0 has tools, which samples would not see"):
        sampled_demonstrations(run, params, lambda: losses, rows.with_columns(tools=pl.lit("[]")), text, "here")
