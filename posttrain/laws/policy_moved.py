"""Laws of policy objectives on tokens that have moved: the clip's side, the weights, the KL's pull."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective, with_gradient
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws import moved
from posttrain.laws.cases import OFF, Case, Shape, build, run, without_extra_terms


def clip_side(objective: Objective, shape: Shape) -> float | None:
    """Return the error on tokens that moved with or against their advantage."""
    if not isinstance(objective, PolicyObjective) or shape.seed % moved.EVERY:
        return None
    case = _one_group(_bare(objective), shape)
    return moved.clip_side(lambda advantage, log_ratio: _respond(case, advantage, log_ratio))


def importance(objective: Objective, shape: Shape) -> float | None:
    """Return the error of the weights (the policy's probability / the sampler's probability)."""
    if not isinstance(objective, PolicyObjective) or shape.seed % moved.EVERY:
        return None
    case = _one_group(_bare(objective), shape)
    return moved.importance(lambda advantage, log_ratio: _respond(case, advantage, log_ratio))


def pull(objective: Objective, shape: Shape) -> float | None:
    """Return the error on samples in exact proportion to the policy: its KL to the reference must fall.

    Rewards are equal.
    """
    if not isinstance(objective, PolicyObjective) or objective.config.kl.type == "none":
        return None
    space = moved.exact(shape.seed)
    case = _one_group(without_extra_terms(objective, kl=objective.config.kl, penalty=OFF), shape)
    same = {name: space.logp() for name in case.step.tokens if name.endswith("logp")}
    step = case.step.with_tokens(**{**same, "ref_logp": space.other_logp()})
    case = replace(case, step=step, leaves={**case.leaves, "logp": space.logp()})
    prepared = case.objective.prepare(case.step, dict(case.state)).step.tokens
    if "dropped" in prepared and bool(prepared["dropped"].any()):
        return None
    return moved.pull(space, run(case).gradients["logp"])


def _bare(objective: PolicyObjective) -> PolicyObjective:
    """Return the objective with only its surrogate and critic."""
    bare = without_extra_terms(objective, penalty=OFF)
    return replace(bare, config=bare.config.model_copy(update={"whiten": False}))


def _one_group(objective: PolicyObjective, shape: Shape) -> Case:
    """Return rows of one token for one prompt, all trained, with rewards and values of 0."""
    case = build(objective, replace(shape, groups=1, size=moved.TOKENS, longest=1))
    rows, tokens = dict(case.step.rows), dict(case.step.tokens)
    for columns in (rows, tokens):
        for name in columns:
            if name in ("reward", "truncated", "opponent", "fresh", "old_value") or name.startswith("part."):
                columns[name] = torch.zeros_like(columns[name])
    return replace(case, step=replace(case.step, rows=rows, tokens=tokens))


def _respond(case: Case, advantage: Tensor, log_ratio: Tensor) -> Tensor:
    """Return the surrogate's gradient with respect to log-probs of tokens with these advantages and log ratios."""
    objective: PolicyObjective = case.objective  # type: ignore[assignment]
    highest = case.leaves["logp"].clamp(min=-0.4)
    logp, old = highest + log_ratio.clamp(max=0), highest - log_ratio.clamp(min=0)
    columns = {name: old for name in case.step.tokens if name.endswith("logp")}
    given = {**columns, "advantage": advantage, "return": torch.zeros_like(advantage)}
    given |= {"step_start_logp": logp} if "step_start_logp" in columns else {}
    prepared = objective.prepare_given(case.step.with_tokens(**given), dict(case.state))
    leaves = {**case.leaves, "logp": logp.detach().requires_grad_()}
    loss = objective.loss(with_gradient(prepared.step, leaves), prepared.state)
    return torch.autograd.grad(loss.total, leaves["logp"])[0]
