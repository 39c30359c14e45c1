"""Training on own samples: a run with all that it has read, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from posttrain.algorithms.objective import Objective
from posttrain.measure.record import note
from posttrain.models.files.store import save_model
from posttrain.online.heldout import heldout_watch
from posttrain.online.policy_sampler import policy_sampler
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.rollouts import RolloutSource
from posttrain.online.runs import OnlineParams
from posttrain.online.stored_rollouts import StoredRollouts
from posttrain.params.slots import model_of
from posttrain.processes import world
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler
from posttrain.sampling.sampler import Sampler, check_capacity
from posttrain.text.chat import ChatText
from posttrain.train.loop import TrainingRun, run_training
from posttrain.train.model_set import ModelSet
from posttrain.workspace import metrics_path, model_path, rollouts_path, rounded, write_json


class LoadedRun(NamedTuple):
    """A run with all that it has read; `inputs`: the start model's folder first."""

    name: str
    params: OnlineParams
    objective: Objective
    models: ModelSet
    text: ChatText
    prompts: Sequence[Prompt]
    inputs: list[Path]

    @property
    def section(self) -> str:
        """Where its settings are."""
        return self.name.replace("@", ".runs.")

    def reward(self) -> RewardSum:
        """Return the rewards of its samples."""
        reward_model = model_of(self.params.reward_model, f"{self.section}.reward_model")
        longest = self.params.rollout.sampling.max_tokens
        context = Context(self.models.runtime, self.section, reward_model, self.text, longest)
        return RewardSum(self.params.reward, context)

    def training(
        self,
        reward: RewardSum,
        monitor: RewardMonitor,
        log: RolloutLog | None = None,
        stored: StoredRollouts | None = None,
        sampler: Sampler | None = None,
    ) -> TrainingRun:
        """The training on its samples, or on those that were stored; `sampler`: by default the built-in decoder."""
        name, params, objective, models, text, prompts, inputs = self
        samples = RolloutSource(
            prompts,
            sampler
            or DistributedSampler(
                LocalSampler(models.policy, text.stops, models.runtime, section=f"{self.section}.rollout.sampling")
            ),
            reward,
            models,
            objective.needs,
            params.rollout,
            text=text,
            seed=params.seed,
            plan=params.sampling_plan(),
            monitor=monitor,
            failures=FailureLimit(reward, params.max_failed, self.section),
            log=log if world.is_rank_zero() else None,
            stored=stored,
            name=name,
        )
        source = params.source(samples, text)
        reward_model = model_of(params.reward_model, f"{self.section}.reward_model")
        inputs = [*inputs, *params.tables(), *([reward_model] if reward_model else [])]
        update = params.update_rule(models, source.steps)
        step_tokens = params.step_tokens(max(len(prompt.ids) for prompt in prompts))
        return TrainingRun(name, params, inputs, objective, source, models, update, step_tokens, params.progress)


def train_on_samples(run: LoadedRun) -> None:
    """Sample and train; writes the model, its rollouts and its metrics."""
    params, rollout = run.params, run.params.rollout
    prompts = [prompt.ids for prompt in run.prompts]
    count = rollout.prompts * rollout.group_size
    check_capacity(run.text.context, prompts, count, rollout.sampling, f"{run.section}.rollout")
    reward, monitor = run.reward(), params.monitor(run.section)
    world.from_first(lambda: check_canaries(reward, run.prompts[: params.canaries], run.section))
    stored = params.rollout_log(run.name, run.text, max(map(len, prompts)))
    with policy_sampler(rollout, run.models, run.text, run.prompts, run.inputs[0], f"{run.section}.rollout") as sampler:
        training = run.training(reward, monitor, stored, sampler=sampler)
        watch = heldout_watch(params, run.models, run.text, reward, training.source.steps, run.section)
        log = run_training(training if watch is None else replace(training, watch=watch))
    monitor.close()

    if watch is not None:
        log.rows.pop()  # the evaluation after the last step
    steps, watched = len(log.rows), {} if watch is None else watch.finish()
    policy = run.models.gather_on_rank_zero().policy
    stored.finish(rollouts_path(run.name), log.rows)
    shown: dict[str, float] = {key: log.tail(key, 10) for key in params.summary if log.last([key])}
    note(weights_version=f"{run.name} step {watched.get('kept_step', steps)}")
    save_model(policy, model_path(run.name), run.inputs[0], params.save_dtype)
    figures = {"algorithm": params.algorithm, "steps": steps, **rounded(shown), **watched}
    write_json(metrics_path(run.name), figures)
