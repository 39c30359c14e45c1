"""Estimate what a run in params.yaml needs: device memory by use, and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.evaluate.likelihood import MICRO_TOKENS
from posttrain.models.device import Runtime, free_bytes
from posttrain.models.files.loading import is_scorer
from posttrain.models.files.text import context_of
from posttrain.models.forward.logp import TILE_BYTES, TILE_TOKENS
from posttrain.models.master_weights import compute_in_bf16
from posttrain.models.memory import byte_count, decoding_bytes, draw_bytes, layer_bytes, vocabulary
from posttrain.online.rollout_log import most_bytes
from posttrain.online.rollout_params import RolloutParams
from posttrain.pipeline.checks.meta_models import config_of, shape_of
from posttrain.pipeline.params.params_file import at
from posttrain.pipeline.params.stage_table import Settings, models_of_set
from posttrain.pipeline.runs.distill import TaughtParams
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.pipeline.runs.online import OnlineParams
from posttrain.pipeline.runs.samples import SamplesRun
from posttrain.pipeline.runs.typed import settings_of
from posttrain.sampling.engines import ENGINES, SLEEP
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.scheduler import FREE_SHARE
from posttrain.sampling.vllm.engine import bytes_next_to_training, engine_bytes
from posttrain.settings.params import check
from posttrain.settings.plain import NONE, merge
from posttrain.train.checkpoint import CHECKPOINTS_KEPT
from posttrain.train.estimate import TILES, checkpoint_bytes, training_parts
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet, Teacher


class ServerMemory(NamedTuple):
    """Bytes of an engine's servers in memory that training uses too."""

    awake: float
    asleep: float
    sleeps: bool
    """True if they sleep while the policy is trained."""
    ahead: int
    """The run's `rollout.ahead`."""


@dataclass
class Demand:
    """Bytes that a run needs. `training`, `sampling` and `heldout` alternate; `states` is always in memory."""

    free: float
    """Free memory of the device; of the machine if the device is the CPU."""
    states: dict[str, float]
    """Weights and optimizer moments."""
    training: dict[str, float] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    heldout: float = 0.0
    """For a pass over held-out rows while the moments are still in memory."""
    rollouts: float = 0.0
    checkpoints: float = 0.0
    processes: int = 1
    """The number of processes. All other numbers, except disk, are for the first process."""
    in_one_memory: int = 1
    """The number of processes that share the free memory."""
    once: float = 0.0
    """Bytes that only the first process needs."""
    servers: ServerMemory | None = None
    """The memory of an engine's servers; all 0 if they have devices of their own."""

    @property
    def fits(self) -> bool:
        """True if the free memory is enough for all processes that share it."""
        return self.taken <= self.free

    @property
    def taken(self) -> float:
        """The bytes that all processes take from the free memory."""
        return self.in_one_memory * (self.total - self.once) + self.once

    @property
    def total(self) -> float:
        """The peak device memory."""
        return sum(self.states.values()) + max(sum(self.training.values()), sum(self.sampling.values()), self.heldout)


def demand_of(
    group: str, run: str, settings: Settings, prompt: int, model: str | None, change: Mapping[str, Any] | None = None
) -> Demand:
    """Return the needs of a run after a change of its settings.

    `prompt`: tokens of the longest prompt. `model`: a config that replaces all models.
    """

    def shape(name: str, *, scores: bool = False) -> Any:
        return shape_of(config_of(model or name, settings), scores=scores)

    if group in ("evaluate.policies", "evaluate.runs"):
        shared = group == "evaluate.policies"
        section = "evaluate.settings" if shared else f"{group}.{run}"
        changed = _changed(settings, section, change)
        params = check(EvaluateParams if shared else EvaluateRun, changed, where=section)
        policy = settings["evaluate"]["policies"][run] if shared else changed["policy"]
        others = [] if params.reference in (NONE, policy) else [shape(params.reference)]
        others += [] if params.are_stored else _reward_models(params, settings, shape)
        if isinstance(params, EvaluateRun) and params.by == "likelihood":
            return _of_likelihood(params, shape(policy), others)
        return _of_sampling(params, shape(policy), others, params.prompts, prompt)
    section = f"{group}.{run}"
    params = settings_of(group, _changed(settings, section, change), section)
    if group == "data.samples":
        count = params.prompts + params.heldout_prompts
        return _of_sampling(params, shape(params.policy), _reward_models(params, settings, shape), count, prompt)
    start = partial(shape, f"base/{run}" if group == "base.scratch" else params.start)
    return _of_training(
        group, params, start, _teachers(params, settings, shape), _reward_models(params, settings, shape), prompt
    )


def _changed(settings: Settings, section: str, change: Mapping[str, Any] | None) -> Any:
    return merge(at(settings, section) or {}, change or {})


def _reward_models(params: Any, settings: Settings, shape: Any) -> list[Any]:
    name = getattr(params, "reward_model", NONE)
    return [] if name == NONE else [shape(one, scores=True) for one in models_of_set(settings, name)]


def _teachers(params: Any, settings: Settings, shape: Any) -> list[Teacher]:
    if not isinstance(params, TaughtParams):
        return []
    here = [] if params.teacher == NONE else [shape(one) for one in models_of_set(settings, params.teacher)]
    return [Teacher(model, params.formula()) for model in (*here, *(None for _ in params.servers))]


def _frozen_bytes(models: list[Any], runtime: Runtime) -> float:
    """Return the bytes of frozen models' weights."""
    for model in models:
        if runtime.bf16_for(model.requires_grad_(requires_grad=False)):
            compute_in_bf16(model)
    return float(byte_count(part for model in models for part in model.parameters()))


def _of_sampling(
    params: EvaluateParams | SamplesRun, policy: Any, others: list[Any], prompts: int, prompt: int
) -> Demand:
    """Return the demand of a stage that samples one policy."""
    runtime = Runtime(params.device)
    runtime.suit(policy)
    weights = {"weights": _frozen_bytes([policy, *others], runtime)}
    demand = Demand(free_bytes(runtime.device), weights)
    if "exact" in ENGINES[params.engine].can:
        _add_sampling(demand, policy, runtime, params.sampling, prompts, params.samples, prompt)
    else:
        most = params.sampling.max_tokens
        _add_servers(demand, policy, runtime, params, _within(policy, prompt, most) + most)
    return demand


def _of_likelihood(params: EvaluateRun, policy: Any, others: list[Any]) -> Demand:
    """Return the demand of a stage that reads rows in forward passes."""
    runtime = Runtime(params.device)
    runtime.suit(policy)
    demand = Demand(free_bytes(runtime.device), {"weights": _frozen_bytes([policy, *others], runtime)})
    demand.sampling["decoding"] = _pass_bytes(policy, MICRO_TOKENS, runtime)
    return demand


def _pass_bytes(policy: Any, tokens: int, runtime: Runtime) -> float:
    """Return the bytes of a pass over this many tokens without gradients: one layer and the head at a time."""
    token = 0 if is_scorer(policy) else 4 * vocabulary(policy)
    head = TILES * min(tokens * token, max(TILE_BYTES, TILE_TOKENS * token))
    return float(tokens * layer_bytes(policy, bf16=runtime.bf16) + head)


def _of_training(
    group: str, params: TrainingParams, start: Any, teachers: list[Teacher], scorers: list[Any], prompt: int
) -> Demand:
    """Return the demand of a stage that trains; if it is online, it also samples in between."""
    needs, runtime = _needs(group, params), params.runtime()
    attach = params.attach(Path())
    models = ModelSet.of(start, runtime, needs, attach, reference_moves=params.reference_moves)
    models = replace(models, teachers=teachers, micro_tokens=params.micro_tokens)
    if isinstance(params, OnlineParams):
        prompt = _within(models.policy, prompt, params.rollout.sampling.max_tokens)
    divided = params.processes > 1 and params.divides_models
    shards = (params.shards or params.processes) if divided else 1
    tokens, copies = _step_tokens(group, params, prompt), params.optimizer.copies
    parts = training_parts(models, tokens, params.activations, shards, copies, params.processes)
    once = _frozen_bytes(scorers, runtime)
    states = {"weights": parts.pop("weights") + once}
    states |= {name: parts.pop(name) for name in ("masters", "moments") if name in parts}
    demand = Demand(free_bytes(runtime.device), states, parts, processes=params.processes, once=once)
    demand.heldout = _pass_bytes(models.policy, _heldout_tokens(group, params, prompt), runtime)
    if runtime.device.type == "cpu":
        demand.in_one_memory = params.processes
    demand.checkpoints = float((CHECKPOINTS_KEPT + 1) * checkpoint_bytes(models, copies))
    if isinstance(params, OnlineParams):
        rollout = params.rollout
        most = rollout.sampling.max_tokens
        if "exact" in ENGINES[rollout.engine].can:
            _add_sampling(demand, models.policy, runtime, rollout.sampling, rollout.prompts, rollout.group_size, prompt)
            if divided:  # decoding takes a whole policy
                size = 2 if runtime.bf16 else 4
                demand.sampling["decoding"] += size * sum(part.numel() for part in models.policy.parameters())
        else:  # servers hold their part while the policy is trained too
            _add_servers(demand, models.policy, runtime, rollout, prompt + most)
        stored = most_bytes(params.rollouts, params.most_rollouts, prompt + most)
        demand.rollouts = min(stored, params.rollouts_gb * 1e9)
    return demand


def _within(policy: Any, prompt: int, most: int) -> int:
    """Return the longest prompt that leaves room for a completion in the model's context."""
    context = context_of(policy.config)
    return prompt if context is None else max(min(prompt, context - most), 1)


def _needs(group: str, params: Any) -> frozenset[str]:
    """Return the columns that the run's objective needs, which decide the models it loads."""
    match group:
        case "reward.runs":
            return RewardObjective(params.objective).needs
        case "preference.runs":
            return PreferenceObjective(params).needs
        case "offline.runs":
            return frozenset(params.objective(1).needs)
        case "online.runs" | "distill.runs":
            return frozenset(params.needs)
    return LikelihoodObjective(LikelihoodConfig()).needs


def _step_tokens(group: str, params: Any, prompt: int) -> int:
    """Return the most tokens of a step, as far as the settings limit them."""
    match group:
        case "base.scratch":
            return int(params.batch * params.window)
        case "sft.runs" if params.kind == "corpus":
            return int(params.batch * params.window)
        case "online.runs" | "distill.runs":
            return int(params.step_tokens(prompt))
        case "offline.runs":
            return int(params.micro_tokens)
        case "reward.runs" | "preference.runs":
            return int(params.batch * params.max_tokens * 2)
    return int(params.batch * params.max_tokens)


def _heldout_tokens(group: str, params: Any, prompt: int) -> int:
    """Return the most tokens of a pass over held-out rows; 0 if the run has none."""
    rows = getattr(params, "heldout_rows", 0)
    return int(min(params.micro_tokens, rows * _step_tokens(group, params, prompt) // params.batch)) if rows else 0


def _add_servers(
    demand: Demand, policy: Any, runtime: Runtime, params: RolloutParams | EvaluateParams | SamplesRun, longest: int
) -> None:
    """Add the memory that an engine's servers take on the run's devices."""
    memory = engine_bytes(params.sampling, policy, longest, runtime)
    awake, asleep = (
        bytes_next_to_training(one, params.engine_servers, demand.processes, runtime.device)
        for one in (memory, (0.0, 0.0))
    )
    asleep = asleep if runtime.device.type == "cuda" else awake  # on a CPU vLLM does not sleep
    sleeps = bool(params.engine_args.get(SLEEP)) and asleep < awake
    demand.servers = ServerMemory(awake, asleep, sleeps, getattr(params, "ahead", 0))
    if held := asleep if sleeps else awake:
        demand.states["engine"] = held
        demand.once += held
    if sleeps:
        demand.sampling["engine"] = awake - asleep


def _add_sampling(
    demand: Demand, policy: Any, runtime: Runtime, params: SamplingParams, prompts: int, samples: int, prompt: int
) -> None:
    """Add the memory for decoding: keys and values up to their budget."""
    prompt = _within(policy, prompt, params.max_tokens)
    rows = min(prompts * samples, params.rows)
    draw = draw_bytes(params.top_p, params.top_k)
    cache_bytes, rest = decoding_bytes(
        policy, rows, min(prompts, rows), prompt, params.max_tokens, bf16=runtime.bf16, draw=draw
    )
    held = demand.in_one_memory * (sum(demand.states.values()) - demand.once) + demand.once
    budget = FREE_SHARE * max(demand.free - held, 0)
    budget = budget if params.kv_gb is None else params.kv_gb * 1e9
    demand.sampling = {"keys and values": min(cache_bytes, budget), "decoding": rest}
