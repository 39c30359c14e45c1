"""An objective that calls itself `by_token` may be cut between any two tokens: what the fast path of training does."""

from __future__ import annotations

import pytest
import torch

from posttrain.algorithms.objective import Objective
from tests.laws.cases import Shape, build, subjects, with_gradient

BY_TOKEN = {name: made for name, made in subjects().items() if made().by_token}


def pieces(objective: Objective, width: int) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, float]]:
    """(loss, gradients, metrics) of a step whose tokens are taken `width` at a time."""
    case = build(objective, Shape(seed=3))
    prepared = objective.prepare(case.step, dict(case.state)).step
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in case.leaves.items()}
    step = with_gradient(prepared, leaves)
    count = int(step.lengths_B.sum())
    parts = [slice(i, min(i + width, count)) for i in range(0, count, width)]
    losses = [objective.loss(step if width >= count else step.tokens_in(part)) for part in parts]
    total = torch.stack([loss.total for loss in losses]).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    metrics = {name: sum(float(loss.metrics[name].detach()) for loss in losses) for name in losses[0].metrics}
    return total.detach(), list(gradients), metrics


@pytest.mark.parametrize("name", BY_TOKEN)
def test_any_cut_between_tokens_gives_the_same_step(name: str) -> None:
    whole, gradients, metrics = pieces(BY_TOKEN[name](), 10_000)
    cut, cut_gradients, cut_metrics = pieces(BY_TOKEN[name](), 2)
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(cut_gradients, gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
    assert cut_metrics == pytest.approx(metrics, abs=1e-9)


def test_the_common_objectives_take_the_fast_path() -> None:
    assert {"likelihood", "grpo", "rloo", "reinforce", "dapo", "cispo"} <= set(BY_TOKEN)
    assert not {"gspo", "ppo", "dpo", "reward"} & set(BY_TOKEN), "these read whole rows or other models"
