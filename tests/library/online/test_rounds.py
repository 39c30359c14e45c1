"""Own samples as batches: rounds, minibatches, replay, and what a checkpoint has of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.errors import RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer
from posttrain.online.rollout_params import Renewal, RolloutParams
from posttrain.online.rounds import (
    Round,
    Rounds,
    _numbered,
    groups_with_signal,
    metric_tensors,
    metrics_from,
    reward_metrics,
    sampler_metrics,
)
from posttrain.rollout import Prompt, Rollout, Score, token_rows
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, encode_prompts
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, make_batch
from tests.library.models.tiny import TEXTS, function_reward, plain_logps, random_rows, rollout_of, tiny_model
from tests.library.online.rounds import rounds_of

CPU = Runtime(DeviceParams(device="cpu", threads=1))
NEEDS = frozenset({"ref_logp"})


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    folder: Path = tmp_path_factory.mktemp("tokens")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    return ChatText(load_tokenizer(folder))


def low_tokens(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(token % 7 for token in one.row.rest) / 10 for one in rollouts]


def rounds(text: ChatText, reward: Any = low_tokens, old: bool = False, **given: Any) -> Rounds:
    """Three rounds of four prompts in groups of two, in two minibatches."""
    size = len(text.tokenizer)
    models = ModelSet(tiny_model(0, size), CPU, tiny_model(1, size), old=tiny_model(2, size) if old else None)
    asked = [Prompt(f"p{nth}", [{"role": "user", "content": f"{nth}+1"}], ()) for nth in range(6)]
    rollout = {"rounds": 3, "prompts": 4, "group_size": 2, "minibatches": 2, "sampling": SamplingParams(max_tokens=3)}
    more = {name: given.pop(name) for name in ("replay", "epochs") if name in given}
    params = RolloutParams(**{**rollout, **more})
    sampler = LocalSampler(models.policy, text.stops, CPU)
    return rounds_of(
        encode_prompts(text, asked), sampler, function_reward(reward), models, NEEDS, params, text, **given
    )


def columns(batch: Batch, name: str) -> list[Any]:
    found: list[Any] = batch.columns.rows[name].tolist()
    return found


def test_the_minibatches_of_a_round_share_its_groups(text: ChatText) -> None:
    source = rounds(text, epochs=2)
    assert source.steps == 12
    first, second, again = (source.batch(step) for step in range(3))
    assert sorted(columns(first, "group") + columns(second, "group")) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert columns(first, "age") == [0] * 4 and columns(second, "age") == [1] * 4 and columns(again, "age") == [2] * 4
    assert columns(second, "fresh") == [True] * 4 and columns(again, "fresh") == [False] * 4
    assert {"ref_logp", "old_logp"} <= first.columns.tokens.keys()
    metrics = source.metrics()
    assert metrics["reward_few_ok"] == 1.0 and metrics["sampler_gap"] < 1e-4
    assert min(columns(source.batch(4), "group")) >= 4, "groups of the next round have other numbers"


def test_earlier_groups_are_replayed(text: ChatText) -> None:
    source = rounds(text, replay={"groups": 2, "rounds": 1})
    assert len(source.batch(0)) == 4 and source._replayed(0, 0) == {}
    source.batch(1)
    mixed = source.batch(2)
    ages = columns(mixed, "age")
    assert len(mixed) == 8 and ages.count(0) == 4 and ages.count(2) == 4
    assert sum(map(len, source._replayed(1, 2).values())) == 2 and source._groups(0) == 4


def test_a_checkpoint_continues_with_the_same_batches(text: ChatText) -> None:
    source = rounds(text, replay={"groups": 1, "rounds": 1}, old=True, renewal=Renewal(every=1, keep=0.5))
    for step in range(3):
        source.batch(step)
    saved = source.state_dict()
    assert any(name.startswith("old.") for name in saved) and any(name.startswith("reference.") for name in saved)
    again = rounds(text, replay={"groups": 1, "rounds": 1}, old=True, renewal=Renewal(every=1, keep=0.5))
    again.load_state_dict(saved)
    mine, theirs = again.batch(3), source.batch(3)
    assert [row.rest for row in mine.rows] == [row.rest for row in theirs.rows]
    assert_close(mine.columns.tokens["ref_logp"], theirs.columns.tokens["ref_logp"])
    assert again.metrics() == source.metrics()


def test_models_that_move_are_saved(text: ChatText) -> None:
    assert rounds(text)._moving_models() == {}
    moving = rounds(text, old=True, renewal=Renewal(every=2))._moving_models()
    assert moving.keys() == {"old", "reference"} and moving["old"].keys() == moving["reference"].keys()


def test_a_renewed_reference_is_the_policy(text: ChatText) -> None:
    source = rounds(text, renewal=Renewal(every=1), old=True)
    source.batch(0)
    policy, reference = source._models.policy, source._models.reference
    assert not torch.equal(policy.lm_head.weight, reference.lm_head.weight)
    batch = source.batch(2)
    assert torch.equal(policy.lm_head.weight, reference.lm_head.weight)
    assert_close(batch.columns.tokens["ref_logp"], batch.columns.tokens["old_logp"], atol=1e-4, rtol=0)
    old = source._models.old
    assert old is not None and torch.equal(policy.lm_head.weight, old.lm_head.weight)
    tokens = source._rounds[1].columns
    stale = source._rounds[1].with_columns(tokens.with_tokens(ref_logp=0 * tokens.tokens["ref_logp"]))
    assert bool((source._with_new_reference(stale).columns.tokens["ref_logp"] < 0).all())


def test_the_fresh_rounds_of_a_policy(text: ChatText) -> None:
    fresh: Any = rounds(text)._sampled
    draw = fresh.begin(0)
    assert (draw.first, draw.round, draw.attempt, len(draw.prompts)) == (0, 0, 0, 4)
    found = fresh.finish(draw)
    assert isinstance(found, Round) and len(found.batch) == 8
    saved = fresh.state_dict()
    assert int(saved["cursor"]) == 4
    rested: list[int] = []
    fresh.sampler._sampler.rest = lambda: rested.append(1)
    taken = fresh.take(1, 2)
    assert rested == [1], "the sampler may give memory back while the round is trained"
    assert fresh.sampler._sampler.version.endswith("step 2")
    other: Any = rounds(text)._sampled
    other.load_state_dict(saved)
    assert [row.rest for row in other.take(1, 2).batch.rows] == [row.rest for row in taken.batch.rows]


def test_groups_of_equal_rewards_are_drawn_again(text: ChatText) -> None:
    fresh: Any = rounds(text, reward=lambda rollouts: [1.0] * len(rollouts), tries=2)._sampled
    found = fresh.take(0, 0)
    assert found.metrics["sampling_rounds"] == 2.0 and found.metrics["groups_kept"] == 0.0
    assert len(found.batch) == 4, "as many groups as minibatches stay"
    with pytest.raises(RewardError, match="1 groups of a round could be scored, fewer than its 2 steps"):
        fresh._check_enough(1)


def group(*rewards: float) -> Batch:
    return make_batch(token_rows([[1]] * len(rewards), [[2]] * len(rewards)), {"reward": torch.tensor(rewards)})


def test_groups_are_numbered_and_survive_as_tensors() -> None:
    batch = _numbered([group(0.0, 1.0), group(2.0)])
    assert columns(batch, "group") == [0, 0, 1] and columns(batch, "reward") == [0.0, 1.0, 2.0]
    saved = Round(batch, {"a": 0.1, "b": 2.0}).tensors()
    assert all(isinstance(part, Tensor) for part in saved.values())
    again = Round.from_tensors(saved)
    assert again.metrics == {"a": 0.1, "b": 2.0} and columns(again.batch, "group") == [0, 0, 1]
    assert metrics_from(metric_tensors({"a": 0.1})) == {"a": 0.1}
    assert groups_with_signal([group(0.0, 0.0), group(0.0, 1.0)]) == 0.5


def test_metrics_of_each_reward() -> None:
    scores = [Score(1.0), Score(0.0, "unparseable"), Score(0.0, "error")]
    rollouts = [rollout_of("a") for _ in scores]
    for one, score in zip(rollouts, scores, strict=True):
        one.scores["few"] = score
    assert reward_metrics(["few"], rollouts) == pytest.approx({
        "reward_few": 0.5, "reward_few_std": 0.7071, "reward_few_ok": 1 / 3, "reward_few_failed": 1.0,
    }, rel=1e-3)  # fmt: skip


def test_how_the_sampler_differs_from_the_trainer() -> None:
    prompts, completions = random_rows(4)
    models = ModelSet(tiny_model(), CPU)
    logp = plain_logps(models.policy, prompts, completions).detach()
    batch = make_batch(token_rows(prompts, completions), {}, {"old_logp": logp - 0.5})
    assert sampler_metrics(models, batch, RolloutParams(gap_rows=0)) == {}
    found = sampler_metrics(models, batch, RolloutParams(gap_rows=4))
    assert found == {"sampler_gap": pytest.approx(0.5, abs=1e-4), "sampler_gap_max": pytest.approx(0.5, abs=1e-4)}
    ahead = sampler_metrics(models, batch, RolloutParams(gap_rows=4, ahead=1))
    assert ahead == {"sampler_kl": pytest.approx(2.71828**0.5 - 0.5 - 1, abs=1e-3)}
