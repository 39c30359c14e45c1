"""The training of a run on samples: collect rounds, make them the batches of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posttrain.online.ahead import RoundsAhead
from posttrain.online.collect import Collect, GroupSampler
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.rounds import FreshRounds, Rounds
from posttrain.online.runs import OnlineParams
from posttrain.params.slots import model_of
from posttrain.rewards.failures import FailureLimit, wait_above
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt
from posttrain.text.chat import ChatText
from posttrain.train.loop import TrainingRun
from posttrain.train.model_set import ModelSet


class Loaded(NamedTuple):
    """What a run has read; `inputs`: the files and folders of these, the start model's first."""

    text: ChatText
    prompts: Sequence[Prompt]
    models: ModelSet
    inputs: list[Path]


def training_run(
    name: str, params: OnlineParams, run: Loaded, groups: GroupSampler,
    rewards: RewardSum, monitor: RewardMonitor, log: RolloutLog | None = None,
) -> TrainingRun:  # fmt: skip
    """Return the training on the samples of a policy, or on those of a finished run (`posttrain replay`)."""
    section, rollout, (text, prompts, models, inputs) = section_of(name), params.rollout, run
    objective, failures = params.objective(), FailureLimit(rewards, params.max_failed, section)

    collect = Collect(
        groups, rewards, failures, monitor, log, rollout.group_size, objective.needs, params.seed, params.sampling
    )
    fresh = FreshRounds(prompts, collect, rollout, params.tries)
    rounds = Rounds(
        RoundsAhead(fresh) if rollout.ahead else fresh, models, objective.needs, rollout, params.seed,
        of_policy=not params.mixture_share, renewal=params.renew_reference, replays=bool(params.router.replays),
    )  # fmt: skip
    source = params.source(rounds, text)

    reward_model = reward_model_of(name, params)
    inputs = [*inputs, *params.tables(), *([reward_model] if reward_model else [])]
    longest = params.step_tokens(max(len(prompt.ids) for prompt in prompts))
    update = params.update_rule(models, source.steps)
    return TrainingRun(
        name, params, inputs, objective, source, models, update, longest, params.progress, step_log=log
    )  # fmt: skip


def rewards_of(name: str, params: OnlineParams, run: Loaded) -> RewardSum:
    """Return the rewards of a run's samples."""
    longest, where = params.rollout.sampling.max_tokens, section_of(name)
    context = Context(run.models.runtime, where, reward_model_of(name, params), run.text, longest)
    return RewardSum(params.terms, context, wait_above(params.on_failures, params.max_failed))


def reward_model_of(name: str, params: OnlineParams) -> Path | None:
    """Return the folder of the run's reward model, if it has one."""
    return model_of(params.reward_model, f"{section_of(name)}.reward_model")


def section_of(name: str) -> str:
    """Return where a run's settings are: `online@grpo` -> online.runs.grpo."""
    return name.replace("@", ".runs.")
