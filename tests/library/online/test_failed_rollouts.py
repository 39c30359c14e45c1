"""Samples whose reward failed are in no batch: their groups get smaller, and groups of one are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.errors import RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_tokenizer
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.rounds import Rounds
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sampling.builtin import LocalSampler
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch
from tests.library.models.tiny import function_reward, tiny_folder
from tests.library.online.rounds import rounds_of

ROLLOUT: dict[str, Any] = {"rounds": 3, "prompts": 4, "group_size": 4, "minibatches": 2, "sampling": {"max_tokens": 6}}
Fails = Callable[[Rollout], bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def source_of(folder: Path, fails: Fails, tries: int = 1) -> Rounds:
    """Rounds of samples with a reward that fails for some of them."""

    def judge(rollouts: Any) -> list[Score]:
        return [Score(9.0, "timeout") if fails(one) else Score(sum(one.row.rest) % 5 / 4) for one in rollouts]

    models, text = ModelSet(load_model(folder), Runtime(DeviceParams(threads=1))), ChatText(load_tokenizer(folder))
    turns = [[{"role": "user", "content": f"{i}+1"}] for i in range(5)]
    prompts = [Prompt(f"p{i}", one, text.prompt(one), str(i)) for i, one in enumerate(turns)]
    reward = function_reward(judge)
    sampler = LocalSampler(models.policy, text.stops, models.runtime)
    needs = frozenset({"reward", "truncated", "old_logp", "group"})
    params = RolloutParams.model_validate(ROLLOUT)
    return rounds_of(prompts, sampler, reward, models, needs, params, text, tries=tries, max_failed=1.0)


def sizes(batch: Batch) -> list[int]:
    return sorted(Counter(batch.columns.rows["group"].tolist()).values())


@pytest.mark.slow
def test_groups_lose_the_samples_that_failed(folder: Path) -> None:
    whole = source_of(folder, lambda one: False)
    part = source_of(folder, lambda one: one.sample == 1 and one.prompt.id != "p0")
    for step in range(4):
        expected, found = whole.batch(step), part.batch(step)
        assert set(sizes(expected)) == {4} and set(sizes(found)) <= {3, 4}
        rewards = found.columns.rows["reward"].tolist()
        assert max(rewards) <= 1.0, "a failed score is never a reward"
    assert part.metrics()["reward_few"] <= 1.0


@pytest.mark.slow
def test_a_group_of_one_is_left_out(folder: Path) -> None:
    source = source_of(folder, lambda one: one.prompt.id == "p1" and one.sample > 0)
    lost = tuple(ChatText(load_tokenizer(folder)).prompt([{"role": "user", "content": "1+1"}]))
    batches = [source.batch(step) for step in range(6)]
    assert all(set(sizes(one)) == {4} for one in batches)
    assert not any(tuple(row.prompt) == lost for one in batches for row in one.rows)


def test_the_rows_that_are_left_have_the_loss_of_a_batch_without_the_others(folder: Path) -> None:
    objective = POLICY_ROWS["dr_grpo"].settings()
    whole, part = source_of(folder, lambda one: False).batch(0), source_of(folder, lambda one: one.sample == 3).batch(0)
    kept = [place for place in range(len(whole)) if place % 4 != 3]
    assert [row.rest for row in part.rows] == [whole.rows[place].rest for place in kept]
    rows = whole.select(kept).columns
    prepared = [PolicyObjective(objective, 6).prepare(one, {}) for one in (rows, part.columns)]
    for name in ("advantage", "weight"):
        assert torch.equal(prepared[0].step.tokens[name], prepared[1].step.tokens[name])


def test_a_resumed_run_has_the_same_batches(folder: Path) -> None:
    def fails(one: Rollout) -> bool:
        return sum(one.row.rest) % 3 == 0

    first, second = source_of(folder, fails), source_of(folder, fails)
    first.batch(0)
    second.load_state_dict(first.state_dict())
    for step in range(1, 4):
        expected, found = first.batch(step), second.batch(step)
        assert [row.rest for row in expected.rows] == [row.rest for row in found.rows]


def test_a_round_without_enough_groups_ends_the_run(folder: Path) -> None:
    source = source_of(folder, lambda one: one.prompt.id != "p2" and one.sample > 0)
    with pytest.raises(RewardError, match="groups of a round could be scored, fewer than its 2 steps"):
        source.batch(0)


def test_dynamic_sampling_replaces_groups_that_failed(folder: Path) -> None:
    source = source_of(folder, lambda one: one.prompt.id == "p2", tries=4)
    found = [sizes(source.batch(step)) for step in range(2)]
    assert sorted(found[0] + found[1]) == [4] * 4
