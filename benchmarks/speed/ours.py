"""The side `posttrain`: the training loop as the stages use it, without the final checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.speed.case import (
    BETAS,
    CLIP,
    LEARNING_RATE,
    STOP,
    Case,
    Row,
    language_model,
    prompts,
    reward,
    tokenizer,
)
from benchmarks.speed.meter import Meter, Report
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import prepared
from posttrain.models.forward.layers import fuse_alike, fused_of
from posttrain.online.ahead import RoundsAhead
from posttrain.online.collect import Collect, PolicyGroups
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import NoRollouts
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.rounds import FreshRounds, Rounds
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.engines import ENGINES, EngineName, SampledModel
from posttrain.sampling.sampler import Sampler, SamplingParams
from posttrain.text.stops import Stops
from posttrain.train.batch_sources import BatchSource, Example, WrappedSource, collate
from posttrain.train.checkpoint import CheckpointData
from posttrain.train.loop import TrainingParams, TrainingRun, training_loop
from posttrain.train.metrics import CsvRecorder, MetricsLog
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import Batch


class Given(BatchSource):
    """The batches of the case, in their order."""

    def __init__(self, updates: Sequence[Sequence[Sequence[Row]]], columns: dict[str, Sequence[float]]) -> None:
        self._updates, self._columns = updates, columns

    @property
    def steps(self) -> int:
        return len(self._updates)

    def batch(self, step: int) -> Batch:
        items = self._updates[step]
        return collate(
            [Example([TokenRow(row.prompt, row.completion) for row in item], self._columns) for item in items]
        )


class Metered(WrappedSource):
    """A source that tells the meter when an update begins."""

    def __init__(self, inner: BatchSource, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def batch(self, step: int) -> Batch:
        self._meter.update()
        return super().batch(step)


T = TypeVar("T")


TRAINING = TrainingParams(checkpoint_every=10_000)
RECOMPUTED = TRAINING.model_copy(update={"activations": "recompute"})


class NoCheckpoints(Checkpoints):
    """TRL's side saves nothing either."""

    def __init__(self) -> None:
        """Hold nothing: benchmarks run side by side."""

    def save(self, saved: CheckpointData) -> None: ...

    def wait(self) -> None: ...

    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:  # noqa: ARG002
        return None


def ready(model: Any, case: Case) -> Any:
    """Return a model as posttrain's store hands it out.

    The library chooses fused layers before a model is on a GPU. This one is already there, so a model of one layer is
    asked.
    """
    made = prepared(model)
    if case.device != "cpu":
        [choice] = fused_of(prepared(language_model(replace(case.shape, layers=1, vocabulary=8))))
        fuse_alike(made, [choice] * case.shape.layers)
    return made.to(case.device)


RANK, ALPHA = 16, 32
"""The adapters of the sides `posttrain_lora` and `trl_lora`, on all linear layers."""


def models_of(case: Case, runtime: Runtime, *, reference: bool, lora: bool) -> ModelSet:
    """Return the policy, all of its weights trained or adapters, and its frozen start where it is needed."""
    policy = ready(language_model(case.shape, case.device), case)
    if not lora:
        return ModelSet(policy, runtime, ready(language_model(case.shape, case.device), case) if reference else None)
    from posttrain.models.adapters import LoraOptions, share_tensors
    from posttrain.models.lora import add, freeze

    options = LoraOptions(rank=RANK, alpha=ALPHA)
    freeze(policy, options)
    start = share_tensors(policy) if reference else None
    return ModelSet(add(policy, options, Path(), 0), runtime, start)


def fit(
    objective: Objective, source: BatchSource, models: ModelSet, meter: Meter, training: TrainingParams = TRAINING
) -> MetricsLog:
    """Train as a stage does, with AdamW at a constant rate."""
    params = OptimizerParams(lr=LEARNING_RATE, schedule="constant", warmup=0.0, betas=list(BETAS), clip=CLIP)
    update = AdamW({"policy": (models.policy, LEARNING_RATE)}, params, source.steps)
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun("benchmark", training, objective, Metered(source, meter), models, update, 0)
        log = training_loop(run, NoCheckpoints(), CsvRecorder(Path(folder) / "log.csv"))
        meter.end()
    return log


def device(case: Case, precision: Literal["fp32", "bf16"] = "fp32", **settings: bool) -> Runtime:
    """Return one thread in float32, or a GPU in bf16."""
    chosen = "bf16" if case.device == "cuda" else precision
    return Runtime(DeviceParams(device=case.device, precision=chosen, threads=1, **settings))


class _Text:
    """What a source of rollouts asks of a tokenizer."""

    context = None

    def __init__(self, case: Case) -> None:
        self._tokenizer = tokenizer(case.shape)
        self.stops = Stops((STOP,), self.decode)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def online(
    case: Case, algorithm: str, settings: dict[str, Any], *, cuda_graphs: bool = True, lora: bool = False,
    engine: EngineName = "builtin", ahead: Literal[0, 1] = 0, meter: Meter | None = None,
) -> Report:  # fmt: skip
    """Return a policy row on its own samples, two updates a round. `meter`: in place of a new one."""
    meter = meter or Meter(case.warm, case.device)
    objective = PolicyObjective(POLICY_ROWS[algorithm].settings(**settings), case.longest_answer)
    needed = "ref_logp" in objective.needs
    models = models_of(case, device(case, cuda_graphs=cuda_graphs), reference=needed, lora=lora)
    count = case.batch // case.group
    given = [Prompt(f"p{i}", (), ids) for i, ids in enumerate(prompts(case, count))]
    even: Reward[Any] = Reward(lambda options, context: lambda rows: [reward(row.row.rest) for row in rows])  # noqa: ARG005
    judged = RewardSum({"even": WeightedReward(reward=even)}, Context(models.runtime, "benchmark"))
    text: Any = _Text(case)
    rounds = (case.warm + case.updates) // 2
    params = RolloutParams(
        rounds=rounds, prompts=count, group_size=case.group, minibatches=2, ahead=ahead, engine=engine,
        sampling=SamplingParams(max_tokens=case.longest_answer),
    )  # fmt: skip
    monitor, failures = RewardMonitor("speed", {}, compares=False), FailureLimit(judged, 0.0, "speed")
    with sampler_of(case, models, text, engine) as sampler:
        groups = PolicyGroups(sampler, text, models, params, seed=0, name="speed")
        collect = Collect(groups, judged, failures, monitor, NoRollouts(), case.group, objective.needs, seed=0)
        fresh = FreshRounds(given, collect, params)
        source = Rounds(RoundsAhead(fresh) if ahead else fresh, models, objective.needs, params, seed=0)
        log = fit(objective, source, models, meter)
    counted = log.rows[case.warm :]
    return meter.report(
        case.batch * case.updates / 2,
        [row["loss"] for row in log.rows],
        length=sum(row["length"] for row in counted) / len(counted),
        reward=sum(row["reward"] for row in counted) / len(counted),
    )


@contextmanager
def sampler_of(case: Case, models: ModelSet, text: Any, engine: EngineName) -> Iterator[Sampler]:
    """Yield the built-in decoder, or vLLM with memory for the rows of the case."""
    if engine == "builtin":
        yield LocalSampler(models.policy, text.stops, models.runtime)
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer(case.shape).save_pretrained(folder)
        sampled = SampledModel(models.policy, Path(folder), text, models.runtime)
        memory = SamplingParams(max_tokens=case.longest_answer, rows=case.batch)
        with ENGINES[engine].open(sampled, memory, case.longest + case.longest_answer, "benchmark", {}) as sampler:
            yield sampler
