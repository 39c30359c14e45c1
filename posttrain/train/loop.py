"""A training run: its settings and the loop. The loop uses an algorithm only through its objective."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from posttrain.algorithms.objective import Objective, State
from posttrain.distributed import world
from posttrain.errors import CheckpointError, TrainingError
from posttrain.measure.phases import phase
from posttrain.measure.progress import Progress
from posttrain.measure.record import note, noted
from posttrain.measure.timings import restore_timings, timings_state
from posttrain.models.adapters import ADAPTER_CHOICE, AdapterChoice, Attach, attach_of
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.compiled import compiled
from posttrain.models.master_weights import round_masters
from posttrain.models.sharding import fill
from posttrain.settings.called import Called
from posttrain.settings.params import Params
from posttrain.text.chat import DATE, TemplateDate, TemplateVariables
from posttrain.train import randomness
from posttrain.train.batch_sources import BatchSource, prefixed
from posttrain.train.callback import NO_LOG, NO_WATCH, StepLog, Watch
from posttrain.train.checkpoint import CheckpointData, CheckpointStore
from posttrain.train.learning_rates import RateKind, default_rate, explained, parameters_of, trained_parameters_of
from posttrain.train.limits import LimitParams, check_limits
from posttrain.train.metrics import MetricsLog, Recorder
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.sharing import Sharing
from posttrain.train.step import StepClosure


class TrainingParams(Params, metaclass=Called):
    """Settings that all training stages share."""

    rate_kind: ClassVar[RateKind] = "sft"
    """The kind of run, which determines the default learning rate."""

    seed: int = Field(0, ge=0, lt=2**32, description="seed of the rows' order and of the samples")
    adapter: AdapterChoice = Field(ADAPTER_CHOICE.chosen, description="what is trained: all weights, or an adapter")
    optimizer: OptimizerParams = Field(default_factory=OptimizerParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    micro_tokens: int = Field(
        16_384, ge=64, description="maximum tokens in one forward pass (affects memory, not results)"
    )
    activations: Activations = Field(
        "keep",
        description="activations for the backward pass. keep: all. selective: results of matrix products and "
        "attention. recompute: layer inputs only. offload: layer inputs, in host memory (affects memory, not results)",
    )
    compile: bool = Field(
        False, description="compile the layers before the first step (docs/memory.md; results differ by rounding)"
    )
    checkpoint_every: int = Field(50, ge=1, description="optimizer steps between checkpoints")
    limits: LimitParams = Field(default_factory=LimitParams)
    router: RouterParams = Field(default_factory=RouterParams)
    processes: int = Field(
        1,
        ge=1,
        le=4096,
        description="processes that share the run (docs/processes.md; affects time and memory, not results)",
    )
    shards: int | None = Field(
        None,
        ge=1,
        description="processes that together hold one copy of the models; null: all",
    )
    save_dtype: SaveDtype | None = Field(
        None,
        description="dtype of the saved weights; null: same as the start model's files, float32 from scratch",
    )
    date: TemplateDate = Field(DATE, description="today's date for chat templates that ask for it")
    template: TemplateVariables = Field(
        default_factory=dict, description="variables for the chat template in this run, e.g. {enable_thinking: false}"
    )

    @property
    def has_critic(self) -> bool:
        """True if a critic is trained together with the policy."""
        return False

    @model_validator(mode="after")
    def _fits_the_models(self) -> TrainingParams:
        if self.optimizer.critic_first and not self.has_critic:
            raise ValueError("optimizer.critic_first: the run has no critic, so nothing would be learned. Remove it")
        if self.compile and self.activations == "selective":
            raise ValueError(
                "compile = true: compiled layers choose their own activations. Use activations: keep or recompute"
            )
        return self

    @model_validator(mode="after")
    def _has_whole_matrices(self) -> TrainingParams:
        if self.optimizer.matrices == "muon" and (self.processes > 1 or self.adapter.type != "none"):
            raise ValueError("optimizer.matrices = muon: it needs whole matrices. Use processes: 1 and adapter: none")
        return self

    @model_validator(mode="after")
    def _can_be_shared(self) -> TrainingParams:
        if self.processes == 1:
            return self
        if self.shards is not None and self.processes % self.shards:
            raise ValueError(f"shards = {self.shards} does not divide processes = {self.processes}. Use a divisor")
        if self.adapter.type == "qlora":
            raise ValueError("processes: weights in 4 bits cannot be divided. Use adapter: lora, or processes: 1")
        if getattr(self.adapter, "dropout", 0.0) > 0:
            raise ValueError(
                "processes: each process would drop different inputs. Set adapter.dropout: 0, or processes: 1"
            )
        return self

    @property
    def reference_moves(self) -> bool:
        """True if the reference changes during the run."""
        return False

    @property
    def critic_start(self) -> Path | None:
        """The reward model that the critic starts from; None: the run's start model with a new head."""
        return None

    @property
    def divides_models(self) -> bool:
        """True if the models are sharded across the run's processes. If not, each process holds whole models."""
        return True

    @property
    def needs(self) -> frozenset[str]:
        """The columns that the objective reads."""
        raise NotImplementedError

    @property
    def logp_temperature(self) -> float:
        """The temperature of log-probs."""
        return 1.0

    def runtime(self) -> Runtime:
        """Return the runtime: device and precision."""
        return Runtime(self.device)

    def attach(self, start: Path) -> Attach | None:
        """Return a function that adds the adapter to a model loaded from `start`."""
        return attach_of(self.adapter, start, self.seed)


def refuse_dropout(params: TrainingParams) -> None:
    """Reject an adapter with dropout if training log-probs are compared with the sampling policy's."""
    if getattr(params.adapter, "dropout", 0.0) > 0:
        raise ValueError(
            "adapter.dropout changes log-probs, which policy gradients compare with the samples' log-probs. Set it to 0"
        )


def section_of(name: str) -> str:
    """Return the key path of a run's settings: `online@grpo` -> online.runs.grpo."""
    return name.replace("@", ".runs.")


RUNS_ON = "runs_on"
"""The key of the device type in the settings that identify a run's checkpoints."""


def checkpoint_settings(params: TrainingParams) -> dict[str, Any]:
    """Return the settings that change the training, as plain data. They determine the checkpoint folder's name."""
    names = ["limits", "checkpoint_every", "save_dtype", "activations", "processes", "shards", "on_failures"]
    without = dict.fromkeys(names if params.template else [*names, "template"], True)
    return params.model_dump(
        mode="json", exclude={**without, "rollout": {"sampling": {"kv_gb"}, "engine_servers": True}}
    )


def adamw(trained: Mapping[str, nn.Module], params: TrainingParams, steps: int, policy: Any) -> AdamW:
    """Return AdamW over the trained models, each with its learning rate.

    The size of `policy` decides the default rate.
    """
    rate = params.optimizer.lr or _default_rate(policy, params)
    rates = {"policy": rate, "critic": params.optimizer.critic_lr or rate}
    return AdamW({name: (model, rates[name]) for name, model in trained.items()}, params.optimizer, steps)


def _default_rate(policy: Any, params: TrainingParams) -> float:
    """Return the default learning rate of a run, and print where it comes from."""
    kind, size = params.rate_kind, parameters_of(policy)
    adapter = params.adapter.type != "none" or 2 * trained_parameters_of(policy) < size  # of peft, from a caller
    if world.rank() == 0:
        print(f"optimizer.lr: {explained(kind, size, adapter=adapter)}", file=sys.stderr)
    return default_rate(kind, size, adapter=adapter).lr


@dataclass(frozen=True)
class TrainingRun:
    """All parts of one training run."""

    name: str
    """The run's name, e.g. `online@grpo`."""
    params: TrainingParams
    objective: Objective
    source: BatchSource
    models: ModelSet
    update: Update
    step_tokens: int
    """Maximum number of tokens of an optimizer step, for the estimate of memory."""
    progress_metrics: tuple[str, ...] = ("loss",)
    """Metrics in the progress line."""
    watch: Watch = NO_WATCH
    step_log: StepLog = NO_LOG
    on_step: Callable[[int, dict[str, float]], None] | None = None
    """Called with each step's number and metrics."""


def training_loop(
    run: TrainingRun, checkpoints: CheckpointStore, recorder: Recorder, end: int | None = None
) -> MetricsLog:
    """Run the training loop: all steps after the last checkpoint, up to `end`. Return the metrics of all steps."""
    for model in run.models.trained.values():
        set_activations(model, run.params.activations)
    try:
        with (
            randomness.without_dropout(run.models.trained.values(), run.objective.needs),
            compiled(run.models.trained.values(), on=run.params.compile),
        ):
            return _train(run, checkpoints, recorder, end)
    finally:
        checkpoints.wait()


def _train(run: TrainingRun, checkpoints: CheckpointStore, recorder: Recorder, end: int | None) -> MetricsLog:
    objective, models, source = run.objective, run.models, run.source
    routers = routers_of(models.policy, run.params.router, run.name)
    first, state, rows = checkpoints.resume(lambda saved: _restore(run, saved)) or (0, objective.initial_state(), [])
    log = MetricsLog(recorder, rows)
    end = source.steps if end is None else end
    sharing = Sharing()
    progress = Progress(run.name.replace("base@", "base_scratch@"), end, done=first)  # the others do not train
    for step in range(first, end + 1):
        looked = run.watch.look(step)
        if step == end or run.watch.ended:
            break
        batch = models.add_scored_columns(source.batch(step), objective.needs)
        with phase("train"):
            prepared = objective.prepare(batch.columns, state)
            for model in models.trained.values():
                model.train()
            closure = StepClosure(objective, models, batch.with_prepared(prepared.step), routers, prepared.state)
            if world.count() > 1 and len(closure.batch):
                models.add_sharing(sharing, closure.batch)
            metrics = run.update.step(closure, step / source.steps)
            state = prepared.state
        run.step_log.trained(step, prepared.step)
        if not prepared.counts:
            metrics = {name: value for name, value in metrics.items() if name in ("loss", "grad_norm", "lr")}
        log.add({"step": step, **metrics, **prepared.metrics, **source.metrics(), **looked})
        if run.on_step is not None:
            run.on_step(step, dict(log.rows[-1]))
        healthy = check_limits(run.params.limits, log.rows, run.name)
        progress.advance(1, log.last(run.progress_metrics))
        if healthy and ((step + 1) % run.params.checkpoint_every == 0 or step + 1 == source.steps):
            checkpoints.save(_checkpoint(run, step + 1, state, log))
    progress.close(log.last(run.progress_metrics))
    if sharing.steps and world.is_rank_zero():
        print(f"{run.name}: {sharing.described(world.count())}", flush=True)
        note(useful_share=f"{sharing.useful:.2f}")
    if step < end and run.params.optimizer.average:
        print(f"{run.name}: the run ended early, so its weights are not averaged (optimizer.average)", file=sys.stderr)
    if looked:
        log.add({"step": step, **looked})
    for model in models.trained.values():
        model.eval()
    return log


def _checkpoint(run: TrainingRun, step: int, state: State, log: MetricsLog) -> CheckpointData:
    source = run.source.state_dict()  # before the log's: what is sampled ahead is scored and logged here
    tensors = prefixed(
        update=run.update.state_dict(),
        source=source,
        watch=run.watch.state_dict(),
        log=run.step_log.state_dict(),
        random=randomness.states(run.models.runtime.device),
    )
    tensors |= run.models.trained_parameters()
    plain = {"objective": state, "rows": log.rows, "time": timings_state(), "processes": noted("processes")}
    return CheckpointData(step, tensors, plain)


def _restore(run: TrainingRun, saved: CheckpointData) -> tuple[int, State, list[dict[str, float]]]:
    """Restore the run from a matching checkpoint. A checkpoint that does not match changes nothing."""
    trained = run.models.trained_parameters()
    _check_fit(trained, run.objective.initial_state(), saved)
    try:
        state, rows = dict(saved.plain["objective"]), list(saved.plain["rows"])
        run.update.load_state_dict(saved.later("update."))
        run.source.load_state_dict(saved.under("source."))
        run.watch.load_state_dict(saved.under("watch."))
        run.step_log.load_state_dict(saved.under("log."))
        randomness.restore(saved.under("random."), run.models.runtime.device)
    except (LookupError, ValueError, RuntimeError, TypeError) as error:
        # checksum, fingerprint and weights are right, so an older checkpoint would fail too, and the run is half loaded
        what = f"step {saved.step} was made by another version of the run ({error!r})"
        raise TrainingError(what=what, where=f"the checkpoints of {run.name}", fix="Delete them") from error
    with torch.no_grad():
        for name, parameter in trained.items():
            fill(parameter, saved.tensors[name])
    for model in run.models.trained.values():
        round_masters(model.parameters())
    restore_timings(saved.plain.get("time"))
    note_processes(str(saved.plain.get("processes") or 1))
    print(f"{run.name}: resumes from the checkpoint at step {saved.step} of {run.source.steps}")
    return saved.step, state, rows


def note_processes(before: str) -> None:
    """Record how many processes share the run, after earlier numbers, e.g. `2, then 1`."""
    now = str(world.count())
    text = now if before == now else before if before.endswith(f", then {now}") else f"{before}, then {now}"
    if text != "1":
        note(processes=text)


def _is_metrics(value: Any) -> TypeGuard[dict[str, float]]:
    """Tell whether a value maps names to numbers."""
    return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())


def _check_fit(trained: Mapping[str, Tensor], start: State, saved: CheckpointData) -> None:
    """Reject a checkpoint whose weights, state or metrics are incomplete, unknown or not finite."""
    rows, state = saved.plain.get("rows"), saved.plain.get("objective")
    complete = isinstance(rows, list) and all(_is_metrics(row) for row in rows) and len(rows) == saved.step
    if not complete or not _is_metrics(state) or state.keys() != start.keys():
        raise CheckpointError(
            what="its metrics or its state are incomplete", where=f"step {saved.step}", fix="Delete it"
        )
    prefixes = tuple({f"{name.split('.')[0]}." for name in trained})
    faults = [f"it lacks {name}" for name in trained if name not in saved.tensors]
    faults += [
        f"it has a foreign {name}" for name in saved.tensors if name.startswith(prefixes) and name not in trained
    ]
    for name in trained.keys() & saved.tensors.keys():
        weight, stored = trained[name], saved.tensors[name]
        if weight.shape != stored.shape:
            faults.append(f"{name} has shape {list(stored.shape)}, expected {list(weight.shape)}")
        elif not torch.isfinite(stored).all():
            faults.append(f"{name} is not finite")
    if faults:
        raise CheckpointError(what="; ".join(sorted(faults)[:5]), where=f"step {saved.step}", fix="Delete it")
