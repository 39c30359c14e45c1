"""A few optimizer steps of every objective by this process and others; the first one writes weights and metrics.

python -m tests.pipeline.processes.every_objective RANK SIZE RENDEZVOUS FOLDER DTYPE SHARDS [--compile] [OBJECTIVE ...]
"""

from __future__ import annotations

import copy
import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.algorithms.objective import Objective, columns_before_prepare
from posttrain.algorithms.policy_config import TrpoOptions
from posttrain.distributed import world
from posttrain.evaluate.table_watch import HeldoutLoss
from posttrain.laws.cases import Shape, build
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import with_scalar_head
from posttrain.models.forward.compiled import compiled
from posttrain.models.master_weights import frozen_on, placed
from posttrain.models.sharding import full, mesh_of, own_part
from posttrain.online.trpo import Trpo
from posttrain.rollout import TokenRow
from posttrain.train.batch_sources import Example
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.step import Batch, StepClosure
from tests.library.laws.subjects import subjects
from tests.library.models.tiny import tiny_model

STEPS, MICRO_TOKENS, VOCABULARY = 3, 60, 97
COMPILES = "--compile"
MIXTURES = ("mixture, grpo", "mixture, dpo")
"""Objectives on a mixture of experts with a balance loss."""
OPTIMIZER = OptimizerParams(lr=1e-3, weight_decay=0.1)


def names() -> list[str]:
    """Every objective."""
    return [*subjects(), *MIXTURES]


@cache
def start_model(*, experts: bool) -> Any:
    """The start model, in float32."""
    if not experts:
        return tiny_model(vocabulary=VOCABULARY)
    from tests.pipeline.train.test_routers import mixture as tiny_mixture

    model = tiny_mixture()
    model.set_experts_implementation("eager")  # the others do not multiply float64
    return model


def moments_within_a_run(models: ModelSet) -> dict[str, torch.Tensor]:
    """AdamW's moments after many steps with gradients of 1e-3.

    Its first step divides each gradient by itself. There, a gradient that is only rounding would move a weight by the
    whole learning rate, and a gradient that is twice too large would not show.
    """
    moments: dict[str, torch.Tensor] = {}
    for name, part in models.trained_parameters().items():
        zeros = torch.zeros(part.shape, dtype=part.dtype)
        moments |= {f"{name}.exp_avg": zeros, f"{name}.exp_avg_sq": zeros + 1e-6, f"{name}.step": torch.tensor(1e4)}
    return moments


def without_float32(model: Any) -> Any:
    """The model with norms and routers in float64 too.

    transformers computes them in float32 whatever the weights are. There, a sum in another order may round to another
    number, so that differences of float64 would be hidden behind those of float32.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = partial(_norm, module)
        elif kind.endswith("TopKRouter"):
            module.forward = partial(_route, module)
    return model


def _norm(module: Any, states: torch.Tensor) -> torch.Tensor:
    scale = (states.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
    return module.weight * (states * scale)


def _route(module: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = torch.nn.functional.linear(states.reshape(-1, module.hidden_dim), module.weight)
    best, chosen = torch.topk(logits.softmax(-1), module.top_k, dim=-1)
    return logits, best / best.sum(-1, keepdim=True) if module.norm_topk_prob else best, chosen


def batch_of(objective: Objective, models: ModelSet, seed: int, vocabulary: int) -> Batch:
    """Rows of random tokens with the columns that the objective needs, as wide as the models' own."""
    case, draw = build(objective, Shape(seed)), torch.Generator().manual_seed(seed)
    lengths = case.step.lengths_B.tolist()
    kind = next(iter(models.trained_parameters().values())).dtype
    prompts = torch.randint(vocabulary, (len(lengths), 5), generator=draw).tolist()
    rows = [
        TokenRow(prompts[i - i % 3], torch.randint(vocabulary, (length,), generator=draw).tolist())
        for i, length in enumerate(lengths)
    ]
    tokens = {name: part for name, part in case.step.tokens.items() if name == "token"}
    step = case.cast(kind).step
    batch = Batch(rows, type(step)(step.lengths_B, step.rows, tokens, step.item_B))
    if "score" in objective.needs:
        return batch
    needs = columns_before_prepare(objective.needs)
    scored = models.add_scored_columns(batch, needs | {"step_start_logp"})
    now = scored.columns.tokens["step_start_logp"]
    sampled = now + 0.1 * torch.randn(now.shape, generator=draw, dtype=torch.float64).to(now.dtype)
    return scored.with_columns(scored.columns.with_tokens(old_logp=sampled))


def heldout_of(models: ModelSet, objective: Any) -> dict[str, float]:
    """The loss of held-out rows, of which each process computes some."""
    examples = [Example([TokenRow([1], [2 + size] * size)]) for size in (9, 30, 4, 17, 50)]
    measured = HeldoutLoss(models, objective, examples, "test")()
    return {f"heldout_{place}": float(value) for place, value in enumerate(measured.true_P)}


def run(
    name: str,
    dtype: torch.dtype,
    shards: int | None,
    device: Literal["cpu", "cuda"] = "cpu",
    steps: int = STEPS,
    *,
    compiles: bool = False,
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """The trained weights and the metrics of each step."""
    mixture = name in MIXTURES
    objective = subjects()[name.removeprefix("mixture, ")]()
    bf16 = dtype == torch.bfloat16  # of the products; the masters are float32
    runtime = Runtime(DeviceParams(device=device, precision="bf16" if bf16 else "fp32", threads=1))
    dtype = torch.float32 if bf16 else dtype
    first = start_model(experts=mixture)

    def start(*, scores: bool = False, empty: bool = False) -> Any:
        model = copy.deepcopy(first).to(dtype)
        model = with_scalar_head(model, "test").to(dtype) if scores else model
        model = without_float32(model) if dtype == torch.float64 else model
        if empty:
            model.to("meta").tie_weights()
        return model

    trpo = name == "trpo"
    mesh = mesh_of(runtime.device, shards) if world.count() > 1 and not trpo else None
    place = partial(placed, runtime=runtime)
    models = ModelSet.of(start, runtime, objective.needs, None, reference_moves=False, mesh=mesh, place=place)
    if models.reference is not None:  # else margins of the first step are 0 or their rounding, and so is their sign
        with torch.no_grad():
            for part in models.reference.parameters():
                own_part(part).mul_(1.01)
    if "teacher_kl" in objective.needs:
        teacher = tiny_model(seed=1, vocabulary=VOCABULARY).to(dtype)
        teacher = without_float32(teacher) if dtype == torch.float64 else teacher
        object.__setattr__(models, "teachers", [Teacher(frozen_on(teacher, runtime), reverse_kl)])
    object.__setattr__(models, "micro_tokens", MICRO_TOKENS)
    routers = routers_of(models.policy, RouterParams(balance=0.1 if mixture else None), "test")
    update: Update = AdamW({kind: (model, 1e-3) for kind, model in models.trained.items()}, OPTIMIZER, steps)
    update.load_state_dict(moments_within_a_run(models))
    if trpo:
        update = Trpo(models.policy, TrpoOptions(delta=0.02, iterations=4))
    state, metrics = objective.initial_state(), list[dict[str, float]]()
    vocabulary = first.config.get_text_config().vocab_size
    with compiled(models.trained.values(), on=compiles):
        for step in range(steps):
            batch = batch_of(objective, models, step, vocabulary)
            if models.old is not None:
                models.copy_policy(models.old)
            prepared = objective.prepare(batch.columns, state)
            state = prepared.state
            for model in models.trained.values():
                model.train()
            closure = StepClosure(objective, models, batch.with_prepared(prepared.step), routers, state)
            metrics.append(update.step(closure, step / steps) | dict(prepared.metrics))
    if name == "likelihood":
        metrics[-1] |= heldout_of(models, objective)
    weights = {f"{name}/{key}": full(part.detach()).contiguous() for key, part in models.trained_parameters().items()}
    return weights, metrics


def main() -> None:
    rank, size, meeting, folder, kind, shards, *chosen = sys.argv[1:]
    compiles = chosen[:1] == [COMPILES]
    if int(size) > 1:
        world.connect(int(rank), int(size), meeting)
    weights: dict[str, torch.Tensor] = {}
    metrics = {}
    for name in chosen[compiles:] or names():
        own, metrics[name] = run(name, getattr(torch, kind), int(shards) or None, compiles=compiles)
        weights |= own
    if world.is_rank_zero():
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        save_file({name: part.clone() for name, part in weights.items()}, str(place / "weights.safetensors"))
        (place / "metrics.json").write_text(json.dumps(metrics))
    world.wait_for_all()


if __name__ == "__main__":
    main()
