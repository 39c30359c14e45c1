"""Mixtures of experts: their load-balancing loss, its gradient and the metrics of their routers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.mixture import SEEDS, measure
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.forward import backbone, run_in_rows
from posttrain.models.forward.routers import balance_loss, find_routers
from posttrain.rollout import token_rows
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.step import Batch, StepClosure, make_batch
from tests.library.models.families import EVERY, MOE, SHAPE
from tests.library.models.tiny import plain_logps, random_rows, tiny_model

CPU = DeviceParams(device="cpu", threads=1)
PROMPTS, COMPLETIONS = random_rows(9, seed=3)  # some prompts are shared by neighbours
WEIGHT = 0.7
MIXTURES = sorted(
    name for name, config in EVERY.items() if {"n_routed_experts", "num_local_experts", "num_experts"} & config.keys()
)


def mixture(name: str = "qwen3_moe") -> Any:
    """A small mixture of a family, with what starts at 0 moved from there."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model = new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return model


def nine_rows() -> Batch:
    """Three groups of three rows."""
    count = sum(len(ids) for ids in COMPLETIONS)
    rows = {
        "reward": torch.linspace(0, 1, 9),
        "truncated": torch.zeros(9, dtype=torch.bool),
        "group": torch.arange(3).repeat_interleave(3),
        "age": torch.zeros(9, dtype=torch.long),
    }
    return make_batch(token_rows(PROMPTS, COMPLETIONS), rows, {"old_logp": torch.full((count,), -4.0)})


def closure(model: Any, runtime: Runtime, objective: Objective, tokens: int, balance: float | None) -> StepClosure:
    """A prepared step of nine rows."""
    batch = nine_rows()
    old = mixture() if "kl_old" in objective.needs else None
    models = ModelSet(model, runtime, old=old, micro_tokens=tokens)
    batch = models.add_scored_columns(batch, objective.needs)
    step = replace(objective.prepare(batch.columns, objective.initial_state()).step, item_B=None)
    routers = routers_of(model, RouterParams(balance=balance), "test")
    return StepClosure(objective, models, batch.with_prepared(step), routers, objective.initial_state())


def plain_balance(model: Any) -> Tensor:
    """The loss by transformers' own functions: each row by itself, each layer by itself."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    rows = [torch.tensor([[*prompt, *rest]]) for prompt, rest in zip(PROMPTS, COMPLETIONS, strict=True)]
    found = [backbone(model)(ids, use_cache=False, output_router_logits=True).router_logits for ids in rows]
    model.set_attn_implementation(was)
    losses = [
        load_balancing_loss_func((torch.cat(layer),), layer[0].shape[-1], MOE["num_experts_per_tok"])
        for layer in zip(*found, strict=True)
    ]
    return torch.stack(losses).mean()


def test_the_balance_loss_is_that_of_the_formula() -> None:
    """Two layers of two experts: one even, one in which expert 0 gets three of four tokens at probability 0.6."""
    load = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    probability = torch.tensor([[0.5, 0.5], [0.6, 0.4]])
    assert float(balance_loss(load, probability)) == pytest.approx((1.0 + 2 * (0.75 * 0.6 + 0.25 * 0.4)) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("micro_tokens", [100_000, 64], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("path", ["fused", "autograd", "rows"])
def test_training_adds_the_gradient_of_the_balance_loss_of_the_whole_step(path: str, micro_tokens: int) -> None:
    """A shared prompt counts for each of its rows and padding not at all, however the step is cut."""
    model = mixture()
    if path == "rows":
        run_in_rows(model)
    runtime = Runtime(CPU, fused=path != "autograd")
    step = closure(model, runtime, LikelihoodObjective(LikelihoodConfig()), micro_tokens, WEIGHT)
    assert (len([*step.micro_batches()]) == 1) == (micro_tokens > 64)
    metrics = step()
    found = {key: part.grad for key, part in model.named_parameters()}
    other = mixture()
    balance = plain_balance(other)
    logps = plain_logps(other, PROMPTS, COMPLETIONS)
    (-logps.mean() + WEIGHT * balance).backward()
    assert metrics["loss"] == pytest.approx(-float(logps.detach().mean()), rel=1e-5)
    assert metrics["balance_loss"] == pytest.approx(float(balance.detach()), rel=1e-5)
    assert step.loss() == pytest.approx(metrics["loss"] + WEIGHT * metrics["balance_loss"], rel=1e-5)
    for key, part in other.named_parameters():
        torch.testing.assert_close(found[key], part.grad, rtol=2e-3, atol=2e-6, msg=key)
    without = mixture()
    closure(without, runtime, step.objective, micro_tokens, 0.0)()
    gates = [key for key in found if "gate.weight" in key]
    assert len(gates) == 2
    plain = dict(without.named_parameters())
    assert all(float((found[key] - plain[key].grad).abs().max()) > 1e-4 for key in gates), "the loss matters"


@pytest.mark.slow
def test_a_second_pass_over_the_same_tokens_is_not_counted() -> None:
    """The exact KL to the sampling policy runs the policy once more for each micro-batch."""
    objective = PolicyObjective(POLICY_ROWS["grpo"].settings(kl="none", penalty={"type": "exact", "beta": 0.3}), 14)
    for in_rows in (False, True):
        model = mixture()
        if in_rows:
            run_in_rows(model)
        found = closure(model, Runtime(CPU), objective, 64, WEIGHT)()
        assert found["balance_loss"] == pytest.approx(float(plain_balance(mixture()).detach()), rel=1e-5)


def test_layers_that_are_computed_again_in_the_backward_pass_are_counted_once() -> None:
    gradients = []
    for again in (False, True):
        model = mixture().train()
        if again:
            model.activation_checkpointing_enable()
            assert model.is_activation_checkpointing
        metrics = closure(model, Runtime(CPU), LikelihoodObjective(LikelihoodConfig()), 64, WEIGHT)()
        gradients.append(torch.cat([part.grad.flatten() for part in model.parameters()]))
        assert metrics["balance_loss"] == pytest.approx(float(plain_balance(model).detach()), rel=1e-5)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", [*MIXTURES, "llama4_text"])
def test_the_routers_of_every_family_are_found_and_balanced(name: str) -> None:
    model = mixture(name)
    routers = find_routers(model)
    assert routers, "a family whose routers nobody watches"
    step = closure(model, Runtime(CPU), LikelihoodObjective(LikelihoodConfig()), 64, WEIGHT)
    found = step()
    experts = routers[0].weight.shape[0]
    assert 0 < found["router_entropy"] <= math.log(experts) + 1e-5
    assert 0 <= found["expert_load_min"] <= 1 <= found["expert_load_max"] <= experts and found["balance_loss"] > 0
    assert all(router.weight.grad.abs().max() > 0 for router in routers)


def test_the_weight_of_the_loss_is_the_configs_unless_params_say_otherwise() -> None:
    model = mixture("olmoe")
    assert routers_of(model, RouterParams(), "test").balance == 0.01 == model.config.router_aux_loss_coef
    assert routers_of(model, RouterParams(balance=0.0), "test").balance == 0
    assert routers_of(mixture("deepseek_v3"), RouterParams(), "test").balance == 0, "its config has none"


def test_a_weight_for_a_dense_model_is_refused() -> None:
    assert routers_of(tiny_model(), RouterParams(), "test").modules == ()
    with pytest.raises(ParamsError, match=r"router\.balance = 0\.1 is set for sft@main, but its model has no routers"):
        routers_of(tiny_model(), RouterParams(balance=0.1), "sft@main")


def test_a_dense_model_has_no_such_metrics() -> None:
    found = closure(tiny_model(), Runtime(CPU), LikelihoodObjective(LikelihoodConfig()), 64, None)()
    assert not {"balance_loss", "router_entropy", "expert_load_max", "expert_load_min"} & found.keys()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_mixture_learns_and_the_loss_keeps_its_experts_even(tmp_path: Path) -> None:
    """From scratch, then SFT; `python -m benchmarks.mixture` has three seeds."""
    found = measure(SEEDS[0], tmp_path)
    assert all(run["sft_loss"] < run["base_loss"] for run in found.values())
    assert found["balanced"]["sft_score"] > found["balanced"]["base_score"] + 0.2
    assert found["balanced"]["base_expert_load_max"] < 0.8 * found["free"]["base_expert_load_max"]
