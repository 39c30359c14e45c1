"""Rounds of a policy's samples, as a stage makes them."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.online.ahead import RoundsAhead
from posttrain.online.collect import Collect, PolicyGroups
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import NoRollouts, RolloutLog
from posttrain.online.rollout_params import Renewal, RolloutParams
from posttrain.online.rounds import FreshRounds, Rounds
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import Sampler
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet


def rounds_of(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    reward: RewardSum,
    models: ModelSet,
    needs: frozenset[str],
    params: RolloutParams,
    text: ChatText,
    *,
    tries: int = 1,
    mixture: float = 0.0,
    opponents: bool = False,
    max_failed: float = 0.0,
    log: RolloutLog | None = None,
    name: str = "rollouts",
    renewal: Renewal | None = None,
    replays: bool = False,
) -> Rounds:
    """Return the rounds of a run with seed 0."""
    groups = PolicyGroups(sampler, text, models, params, seed=0, name=name, mixture=mixture, opponents=opponents)
    monitor = RewardMonitor("rollouts", {}, compares=False)
    failures = FailureLimit(reward, max_failed, "online.runs.a")
    collect = Collect(groups, reward, failures, monitor, log or NoRollouts(), params.group_size, needs, seed=0)
    fresh = FreshRounds(prompts, collect, params, tries)
    sampled = RoundsAhead(fresh) if params.ahead else fresh
    return Rounds(sampled, models, needs, params, seed=0, of_policy=not mixture, renewal=renewal, replays=replays)
