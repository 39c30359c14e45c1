"""What `watch` of a run that samples measures: its held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posttrain.data.splits import check_enough_prompts
from posttrain.evaluate.watch import HeldoutWatch
from posttrain.online.heldout import HeldoutRewards
from posttrain.pipeline.params.slots import model_of
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import table_path
from posttrain.rewards.failures import wait_above
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler
from posttrain.sampling.sampler import (
    Sampler,
    check_capacity,
    encode_prompts,
    prompts_of,
)
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet

if TYPE_CHECKING:
    from posttrain.pipeline.runs.online import OnlineParams


def heldout_prompts(params: OnlineParams, text: ChatText, section: str) -> list[Prompt]:
    """Return the held-out prompts of the run's table that `watch` measures the policy on; none where none does."""
    watch, table = params.watch, table_path(params.data)
    if watch is None:
        return []
    where = f"{section}.watch"
    rows = read_table(table, "prompts").filter(split="heldout").iter_rows(named=True)
    prompts = scorable_prompts(watch.reward, encode_prompts(text, prompts_of(rows)), str(table))[: watch.prompts]
    check_enough_prompts(len(prompts), "heldout", table)
    if len(prompts) < watch.prompts:
        print(f"{where}.prompts = {watch.prompts}: {table} has {len(prompts)} held-out prompts, which are all used")
    lengths, sampling = [prompt.ids for prompt in prompts], params.rollout.sampling
    check_capacity(text.context, lengths, len(prompts) * watch.samples, sampling, where)
    return prompts


def heldout_watch(
    params: OnlineParams, models: ModelSet, text: ChatText, prompts: Sequence[Prompt], proxy: RewardSum, steps: int,
    section: str, sampler: Sampler,
) -> HeldoutWatch | None:  # fmt: skip
    """What evaluates the policy while it is trained, on `heldout_prompts`; None where none does.

    `sampler`: that of the run; where it holds the samples of a round ahead, the built-in decoder samples instead.
    """
    watch = params.watch
    if watch is None:
        return None
    where, sampling = f"{section}.watch", params.rollout.sampling
    reward_model = model_of(params.reward_model, f"{section}.reward_model")
    context = Context(models.runtime, where, reward_model, text, sampling.max_tokens)
    true = RewardSum(watch.terms, context, wait_above(params.on_failures, params.max_failed))
    if params.rollout.ahead:
        local = LocalSampler(models.policy, text.stops, models.runtime, section=f"{section}.rollout.sampling")
        sampler = DistributedSampler(local)
    measure = HeldoutRewards(
        sampler,
        models.policy,
        text,
        prompts,
        sampling,
        samples=watch.samples,
        seed=params.seed,
        rewards=(true, proxy),
        max_failed=params.max_failed,
        where=where,
    )
    return HeldoutWatch(watch, measure, models.policy, steps, where)
