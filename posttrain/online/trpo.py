"""Trust region policy optimisation as an update rule (Schulman 2015).

    maximise g.s  subject to  s F s / 2 <= delta,  s = sqrt(2 delta / x F x) x,  F x = g by conjugate gradient

A backtracking line search follows. It accepts a step if the loss decreases and the mean KL(old || new), computed
exactly over the vocabulary, is at most delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from posttrain.algorithms.policy_config import TrpoOptions
from posttrain.distributed import world
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.logp import exact_kl
from posttrain.text.packing import PackedRows, pack
from posttrain.train.loop import TrainingParams
from posttrain.train.step import StepClosure


def trpo_refusal(params: TrainingParams) -> str | None:
    """Return the reason why a run cannot use this update rule; None if it can."""
    if params.activations != "keep":
        value = f"activations = {params.activations}"
        return f"{value}: update trpo differentiates twice, which needs all activations. Use keep"
    if params.compile:
        return "compile = true: update trpo differentiates twice, which compiled layers do not support. Remove it"
    if params.device.precision == "bf16":
        return "device.precision = bf16: update trpo solves for its step in float32. Use fp32 or auto"
    if params.optimizer.average or params.optimizer.matrices != "adamw":
        return "optimizer.average and matrices: update trpo computes its own step. Remove them"
    if params.optimizer.critic_first:
        return "optimizer.critic_first: update trpo moves the policy in each step. Remove it"
    return None


class TrustRegion:
    """KL(old || new) from the policy at the start of the step, and products of its Hessian with vectors."""

    def __init__(self, closure: StepClosure) -> None:
        """Save the present hidden states and head of the policy."""
        self._models = models = closure.models
        with torch.no_grad():
            self._old: list[tuple[PackedRows, Tensor]] = []
            for micro in closure.micro_batches():
                packed = pack(micro.rows).to(models.runtime.device)
                self._old.append((packed, packed_states(models.policy, packed)[packed.source_M].clone()))
            self._old_head = models.head(models.policy).copied()
            self._tokens = sum(world.gathered(sum(packed.target_M.numel() for packed, _ in self._old)))

    @torch.no_grad()
    def kl(self) -> float:
        """Return the mean KL(old || new) per token."""
        return float(sum(world.gathered(sum(float(part) for part in self._kls()))))

    def kl_gradient_product(self, vector: list[Tensor]) -> list[Tensor]:
        """Return F v, the gradient of (gradient of mean KL) . v. At the old policy, the gradient of the KL is 0."""
        parameters = [p for p in self._models.policy.parameters() if p.requires_grad]
        product = [torch.zeros_like(p) for p in parameters]
        with sdpa_kernel(SDPBackend.MATH):
            for kl in self._kls():
                gradient = torch.autograd.grad(kl, parameters, create_graph=True)
                directional = torch.stack([(a * b).sum() for a, b in zip(gradient, vector, strict=True)]).sum()
                for total, part in zip(product, torch.autograd.grad(directional, parameters), strict=True):
                    total += part
        world.add_up(product)
        return product

    def _kls(self) -> Any:
        """Return each micro-batch's contribution to the mean KL(old || new) per token."""
        models = self._models
        tokens = self._tokens
        for packed, old in self._old:
            new = packed_states(models.policy, packed)[packed.source_M]
            head = models.head(models.policy)
            yield exact_kl(old, self._old_head, new, head, models.temperature).sum() / tokens


class Trpo:
    """Update rule of the policy: a natural gradient step within the trust region. A critic uses AdamW."""

    def __init__(self, policy: Any, params: TrpoOptions, critic: Any | None = None) -> None:
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._params, self._critic = params, critic

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]:
        """Take one natural gradient step within the region, or no step."""
        region = TrustRegion(closure)
        metrics = self._critic.step(closure, progress) if self._critic else closure()
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        metrics["grad_norm"] = float(_dot(gradient, gradient).sqrt())
        if metrics["grad_norm"] == 0:
            return metrics | {"trust_kl": 0.0, "step_share": 0.0}
        direction = self._solve(region, gradient)
        curvature = _dot(direction, self._damped(region, direction))
        scale = float((2 * self._params.delta / curvature.clamp(min=1e-12)).sqrt())
        return metrics | self._search(closure, region, [scale * d for d in direction])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the critic's optimizer. The policy's step has no state."""
        state: dict[str, Tensor] = self._critic.state_dict() if self._critic else {}
        return state

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        if self._critic:
            self._critic.load_state_dict(tensors)

    def _damped(self, region: TrustRegion, vector: list[Tensor]) -> list[Tensor]:
        product = region.kl_gradient_product(vector)
        return [f + self._params.damping * v for f, v in zip(product, vector, strict=True)]

    def _solve(self, region: TrustRegion, gradient: list[Tensor]) -> list[Tensor]:
        """Solve (F + damping) x = g by conjugate gradient."""
        x = [torch.zeros_like(g) for g in gradient]
        residual = [g.clone() for g in gradient]
        search = [g.clone() for g in gradient]
        size = _dot(residual, residual)
        for _ in range(self._params.iterations):
            product = self._damped(region, search)
            alpha = size / _dot(search, product).clamp(min=1e-20)
            x = [a + alpha * s for a, s in zip(x, search, strict=True)]
            residual = [r - alpha * p for r, p in zip(residual, product, strict=True)]
            after = _dot(residual, residual)
            if float(after) < 1e-10 * float(_dot(gradient, gradient)):
                break
            search = [r + (after / size) * s for r, s in zip(residual, search, strict=True)]
            size = after
        return x

    @torch.no_grad()
    def _search(self, closure: StepClosure, region: TrustRegion, full: list[Tensor]) -> dict[str, float]:
        before = [p.clone() for p in self._parameters]
        start = closure.loss()
        share = 1.0
        for _ in range(self._params.backtracks + 1):
            for parameter, old, change in zip(self._parameters, before, full, strict=True):
                parameter.copy_(old - share * change)
            kl = region.kl()
            if kl <= self._params.delta and closure.loss() < start:
                return {"trust_kl": kl, "step_share": share}
            share /= 2
        for parameter, old in zip(self._parameters, before, strict=True):
            parameter.copy_(old)
        return {"trust_kl": 0.0, "step_share": 0.0}


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()
