"""One round of groups: sampled, scored, and made batch rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.objective import REWARD_PARTS, parts_of
from posttrain.errors import DataError
from posttrain.formulas.ragged import row_keys
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.online.collect import Collect, Draw, PolicyGroups, _check_carried
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import NoRollouts
from posttrain.online.rollout_params import RolloutParams
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import KeptSampling, RoutedSampling, SamplingParams, encode_prompts
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import TEXTS, tiny_model

CPU = Runtime(DeviceParams(device="cpu"))
NONE = frozenset[str]()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def groups(text: ChatText, **given: Any) -> PolicyGroups:
    policy = tiny_model(vocabulary=len(text.tokenizer))
    models = ModelSet(policy, CPU, tiny_model(1, vocabulary=len(text.tokenizer)))
    params = RolloutParams(group_size=3, sampling=SamplingParams(max_tokens=3))
    return PolicyGroups(LocalSampler(policy, text.stops, CPU), text, models, params, seed=0, name="online@a", **given)


def drawn(text: ChatText) -> Draw:
    asked = [Prompt(name, [{"role": "user", "content": f"{name}+1"}], ()) for name in ("a", "b")]
    return Draw(encode_prompts(text, asked), 4, 7, 1)


def test_a_draw_has_a_name() -> None:
    assert Draw([], 0, 7).name == "7:0" and Draw([], 0, 7, 2).name == "7:2"


def test_groups_of_the_policy(text: ChatText) -> None:
    found = groups(text)
    assert found.background is False and found.scored is False
    rollouts = found.sample(drawn(text))
    assert [(one.prompt.id, one.sample) for one in rollouts] == [(name, nth) for name in "ab" for nth in range(3)]
    found.sync(5)
    assert found._sampler.version == "online@a step 5"
    assert [one.text for one in found.sample(drawn(text))] == [one.text for one in rollouts]


def test_opponents_follow_the_policy_s_own_samples(text: ChatText) -> None:
    both = groups(text, mixture=1.0, opponents=True).sample(drawn(text))
    assert [(one.prompt.id, one.sample) for one in both] == [(name, nth) for name in "ab" for nth in range(3)]
    own, mixed = groups(text).sample(drawn(text)), groups(text, mixture=1.0)
    assert [both[nth].text for nth in (0, 1, 3, 4)] == [own[nth].text for nth in (0, 1, 3, 4)]
    named = mixed._generate(drawn(text).prompts, "7:1:opponent", 1, mixed._mixture)
    assert [both[nth].text for nth in (2, 5)] == [one.text for one in named]


class Given:
    """Groups that are there already."""

    background = False

    def __init__(self, rollouts: Sequence[Rollout], scored: bool = False) -> None:
        self.rollouts, self.scored = rollouts, scored

    def sync(self, step: int) -> None:
        pass

    def sample(self, draw: Draw) -> list[Rollout]:
        return list(self.rollouts)


def length(rollouts: Sequence[Rollout]) -> list[Any]:
    return [Score(0.0, "error", "no") if one.text == "bad" else float(len(one.text)) for one in rollouts]


def two(rollouts: Sequence[Rollout]) -> list[float]:
    return [2.0] * len(rollouts)


def rollout(prompt: str, sample: int, text: str, finish: Any = "stop") -> Rollout:
    row = TokenRow([1], list(range(len(text))))
    return Rollout(Prompt(prompt, [], [1]), sample, row, [-0.5] * len(text), text, finish)


def collect(rollouts: Sequence[Rollout], needs: frozenset[str] = NONE, group_size: int = 2, **given: Any) -> Collect:
    terms = {"length": WeightedReward(reward=Reward(lambda options, context: length)),
             "two": WeightedReward(weight=0.5, reward=Reward(lambda options, context: two))}  # fmt: skip
    rewards = RewardSum(terms, Context(CPU, "online.runs.a"))
    monitor = RewardMonitor("online.runs.a", {}, compares=False)
    failures = FailureLimit(rewards, 0.9, "online.runs.a")
    return Collect(Given(rollouts), rewards, failures, monitor, NoRollouts(), group_size, needs, 3, **given)


SOME = [
    rollout("a", 0, "x"), rollout("a", 1, "xyz", "length"),
    rollout("b", 0, "xy"), rollout("b", 1, "bad"),
    rollout("a", 0, "xy"), rollout("a", 1, "xyzw"),
]  # fmt: skip
DRAW = Draw([one.prompt for one in SOME[::2]], 4, 7, 1)


def test_whole_groups_become_batches() -> None:
    found = collect(SOME)(DRAW)
    assert [one.text for one in found.rollouts] == [one.text for one in SOME] and len(found.groups) == 2
    assert found.rollouts[0].scores["length"] == Score(1.0)
    first, last = (group.columns for group in found.groups)
    assert first.rows["reward"].tolist() == [2.0, 4.0] and last.rows["reward"].tolist() == [3.0, 5.0]
    assert first.rows["truncated"].tolist() == [False, True] and first.rows["rollout"].tolist() == [8, 9]
    assert last.rows["rollout"].tolist() == [12, 13] and first.rows["outcome"].tolist() == [2.0, 4.0]
    assert first.tokens["old_logp"].tolist() == [-0.5] * 4 and [len(row.rest) for row in found.groups[0].rows] == [1, 3]
    given = collect([])(DRAW, SOME)
    assert len(given.groups) == 2


def test_columns_that_an_objective_needs() -> None:
    first, last = (group.columns.rows for group in collect(SOME, frozenset({"sample_key", "opponent"}))(DRAW).groups)
    assert first["sample_key"].tolist() == row_keys(3, ["a:7:1:0", "a:7:1:1"]).tolist()
    assert last["sample_key"].tolist() == row_keys(3, ["a:7:1:2", "a:7:1:3"]).tolist(), "drawn a second time"
    assert first["opponent"].tolist() == [False, True]


def test_parts_of_the_reward() -> None:
    one = collect(SOME, frozenset({REWARD_PARTS}))
    assert collect(SOME)._parts([]) == {}
    parts = parts_of(one(DRAW).groups[0].columns.rows)
    assert {name: (part.tolist(), weight) for name, (part, weight) in parts.items()} == {
        "length": ([1.0, 3.0], 1.0), "two": ([2.0, 2.0], 0.5),
    }  # fmt: skip


def test_groups_with_too_few_scored_samples_are_left_out() -> None:
    assert collect(SOME)._whole_groups([0, 1, 2, 4, 5]) == [[0, 1], [4, 5]]
    assert collect(SOME, group_size=3)._whole_groups([0, 1, 3, 6, 7, 8]) == [[0, 1], [6, 7, 8]]
    assert collect(SOME, group_size=1)._whole_groups([0, 2]) == [[0], [2]]


def test_samples_must_carry_what_log_probs_depend_on() -> None:
    _check_carried(SOME, SamplingParams())
    with pytest.raises(DataError, match="do not record which tokens top_p and top_k allowed"):
        _check_carried(SOME, KeptSampling(top_k=3))
    with pytest.raises(DataError, match="do not record which experts computed them"):
        _check_carried(SOME, RoutedSampling())
    routed = replace(SOME[0], row=replace(SOME[0].row, experts=torch.zeros(1, 1, 1)))
    _check_carried([routed], RoutedSampling())
