"""The training of a run on samples: collect rounds, make them the batches of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posttrain.online.ahead import RoundsAhead
from posttrain.online.collect import Collect, GroupSampler
from posttrain.online.config import OnlineConfig
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.rounds import FreshRounds, Rounds
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
    name: str, params: OnlineConfig, run: Loaded, groups: GroupSampler,
    rewards: RewardSum, monitor: RewardMonitor, log: RolloutLog | None = None,
) -> TrainingRun:  # fmt: skip
    """Return the training on the samples of a policy, or on those of a finished run (`posttrain replay`)."""
    section, rollout, (text, prompts, models, _) = section_of(name), params.rollout, run
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

    longest = params.step_tokens(max(len(prompt.ids) for prompt in prompts))
    update = params.update_rule(models, source.steps)
    return TrainingRun(
        name, params, objective, source, models, update, longest, params.progress, step_log=log
    )  # fmt: skip


def rewards_of(name: str, params: OnlineConfig, run: Loaded, reward_model: Path | None = None) -> RewardSum:
    """Return the rewards of a run's samples; `reward_model`: the folder of the one behind reward `model`."""
    longest, where = params.rollout.sampling.max_tokens, section_of(name)
    context = Context(run.models.runtime, where, reward_model, run.text, longest)
    return RewardSum(params.terms, context, wait_above(params.on_failures, params.max_failed))


def section_of(name: str) -> str:
    """Return where a run's settings are: `online@grpo` -> online.runs.grpo."""
    return name.replace("@", ".runs.")
