"""Run a training on the policy's samples, from its inputs to the trained policy. Stages and calls both use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from posttrain.distributed import world
from posttrain.evaluate.watch import HeldoutWatch
from posttrain.measure.record import note
from posttrain.models.files.text import context_of
from posttrain.online.ahead import RoundsAhead
from posttrain.online.collect import Collect, GroupSampler, PolicyGroups
from posttrain.online.config import OnlineConfig
from posttrain.online.heldout import HeldoutRewards
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import NoRollouts, SampleLog
from posttrain.online.rounds import FreshRounds, Rounds
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.failures import FailureLimit, wait_above
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rewards.usage import judge_totals
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.episodes import longest_row
from posttrain.sampling.sampler import Sampler, check_capacity
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.callback import NO_WATCH, NoWatch, Watch
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.loop import TrainingRun, section_of
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained, run_training


@dataclass(frozen=True)
class OnlineRun:
    """The inputs of a training on the policy's samples, as values."""

    name: str
    """Its name in messages, rollouts and checkpoints."""
    config: OnlineConfig
    text: ChatText
    prompts: Sequence[Prompt]
    models: ModelSet
    heldout: Sequence[Prompt] = ()
    """The prompts for the evaluations of `watch`."""
    reward_model: Path | None = None
    """The folder of the model behind the reward `model`."""
    examples: Sequence[Example] = ()
    """Given answers that a student trains on in addition to its own samples."""

    @property
    def section(self) -> str:
        """The key path of its settings: `online@grpo` -> online.runs.grpo."""
        return section_of(self.name)

    def rewards(self) -> RewardSum:
        """Return the rewards of its samples."""
        config = self.config
        context = Context(
            self.models.runtime, self.section, self.reward_model, self.text, config.rollout.sampling.max_tokens
        )
        return RewardSum(config.terms, context, wait_above(config.on_failures, config.max_failed))

    def training(
        self, groups: GroupSampler, rewards: RewardSum, monitor: RewardMonitor, log: SampleLog | None = None
    ) -> TrainingRun:
        """Return the training on samples of a policy or of a finished run (`posttrain replay`)."""
        config, rollout, models = self.config, self.config.rollout, self.models
        log = NoRollouts() if log is None else log
        objective, failures = config.objective(), FailureLimit(rewards, config.max_failed, self.section)
        collect = Collect(
            groups, rewards, failures, monitor, log, rollout.group_size, objective.needs, config.seed, config.sampling
        )
        fresh = FreshRounds(self.prompts, collect, rollout, config.tries)
        rounds = Rounds(
            RoundsAhead(fresh) if rollout.ahead else fresh, models, objective.needs, rollout, config.seed,
            of_policy=not config.mixture_share, renewal=config.renew_reference, replays=bool(config.router.replays),
        )  # fmt: skip
        source = config.mixed(config.source(rounds, self.text), self.examples)
        longest = config.step_tokens(max(len(prompt.ids) for prompt in self.prompts))
        update = config.update_rule(models, source.steps)
        return TrainingRun(
            self.name, config, objective, source, models, update, longest, config.progress, step_log=log
        )  # fmt: skip

    def groups(self, sampler: Sampler) -> PolicyGroups:
        """Return the object that samples groups from its policy."""
        config = self.config
        return PolicyGroups(
            sampler, self.text, self.models, config.rollout,
            seed=config.seed, name=self.name, mixture=config.mixture_share, opponents=config.has_opponents,
            sampling=config.sampling,
        )  # fmt: skip

    def watch(self, rewards: RewardSum, sampler: Sampler, steps: int) -> HeldoutWatch | None:
        """Return the evaluation during training; None if there is none.

        `sampler`: the run's sampler. If it holds the samples of the next round, the built-in decoder is used instead.
        """
        config, watch, where = self.config, self.config.watch, f"{self.section}.watch"
        if watch is None:
            return None
        sampling = config.rollout.sampling
        context = Context(self.models.runtime, where, self.reward_model, self.text, sampling.max_tokens)
        true = RewardSum(watch.terms, context, wait_above(config.on_failures, config.max_failed))
        measure = HeldoutRewards(
            self.decoder() if config.rollout.ahead else sampler, self.models.policy, self.text, self.heldout, sampling,
            samples=watch.samples, seed=config.seed, rewards=(true, rewards), max_failed=config.max_failed, where=where,
        )  # fmt: skip
        return HeldoutWatch(watch, measure, self.models.policy, steps, where)

    def decoder(self) -> Sampler:
        """Return the built-in decoder for the run's policy."""
        section = f"{self.section}.rollout.sampling"
        return DistributedSampler(
            LocalSampler(self.models.policy, self.text.stops, self.models.runtime, section=section)
        )

    @contextmanager
    def sampler(self) -> Iterator[Sampler]:
        """Open the engine in the settings."""
        rollout, policy = self.config.rollout, self.models.policy
        longest = longest_row([*self.prompts, *self.heldout], rollout.sampling, context_of(policy.config))
        sampled = SampledModel(policy, self.models.folder, self.text, self.models.runtime)
        with ENGINES[rollout.engine].open(
            sampled, self.config.sampling, longest, f"{self.section}.rollout", rollout.engine_args,
            rollout.engine_servers,
        ) as sampler:  # fmt: skip
            yield sampler


def run_online(
    run: OnlineRun, checkpoints: CheckpointStore, recorder: Recorder, *,
    rollouts: SampleLog | None = None, sampler: Sampler | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None, patient: bool = False,
) -> Trained:  # fmt: skip
    """Sample, score and train. By default, rollouts are stored next to the checkpoints, if checkpoints are stored.

    `sampler`: replaces the engine in the settings. `patient`: if `patience` is used up, the run ends normally with its
    metrics, without an error.
    """
    config, rollout, section = run.config, run.config.rollout, run.section
    lengths = [prompt.ids for prompt in run.prompts]
    count = rollout.prompts * rollout.group_size
    check_capacity(run.text.context, lengths, count, rollout.sampling, f"{section}.rollout")
    rewards, monitor = run.rewards(), config.monitor(section)
    world.from_first(lambda: check_canaries(rewards, run.prompts[: config.canaries], section))
    if rollouts is None:
        stores = checkpoints.keeps
        rollouts = config.rollout_log(run.name, run.text, max(map(len, lengths))) if stores else NoRollouts()

    with given(sampler) if sampler is not None else run.sampler() as opened:
        world.from_first(lambda: rewards.load(run.prompts))
        training = run.training(run.groups(opened), rewards, monitor, rollouts if world.is_rank_zero() else None)
        watch: Watch = run.watch(rewards, opened, training.source.steps) or NO_WATCH
        training = replace(training, on_step=on_step, watch=_Patience(monitor, watch) if patient else watch)
        trained = run_training(training, checkpoints, recorder)
    monitor.close()
    trained.rollouts = rollouts
    trained.figures = judge_totals(trained[: trained.steps : rollout.steps_a_round])
    note(weights_version=f"{run.name} step {trained.kept.get('kept_step', trained.steps)}")
    return trained


@contextmanager
def given(sampler: Sampler) -> Iterator[Sampler]:
    """Use a sampler that the caller opened."""
    yield sampler


class _Patience(NoWatch):
    """A watch that ends the loop when the monitor's patience is used up.

    It also passes every call on to another watch.
    """

    def __init__(self, monitor: RewardMonitor, watch: Watch) -> None:
        self._monitor, self._watch = monitor, watch
        monitor.raises = False  # the metrics of a run that ends early are worth more than an error

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """True if the run must end."""
        return self._monitor.ended or self._watch.ended

    def look(self, step: int) -> dict[str, float]:
        """Return the metrics of the other watch."""
        return self._watch.look(step)

    def finish(self) -> dict[str, float]:
        """Call `finish` of the other watch."""
        return self._watch.finish()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the other watch's state."""
        return self._watch.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the other watch's state."""
        self._watch.load_state_dict(tensors)
