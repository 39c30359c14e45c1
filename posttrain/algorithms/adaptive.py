"""What policy objectives carry from step to step: prices that follow a target, and a running baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages import MovingAverageOptions
from posttrain.algorithms.objective import State
from posttrain.algorithms.policy_knobs import KlOptions, PenaltyOptions, PolicyKnobs
from posttrain.formulas.kl import forward_k3, k1
from posttrain.formulas.ragged import Ragged

MOST = 0.2
"""Most that one batch may tell about the error of beta (Ziegler 2019)."""


def initial_coefficients(knobs: PolicyKnobs) -> State:
    """The state before the first step."""
    state: State = {"beta": knobs.kl.beta if isinstance(knobs.kl, KlOptions) else 0.0}
    if isinstance(knobs.penalty, PenaltyOptions):
        state |= {"penalty": knobs.penalty.beta, "moved": 0.0}
    if isinstance(knobs.advantage, MovingAverageOptions):
        state |= {"baseline": 0.0, "baseline_weight": 0.0}
    return state


def updated_coefficients(knobs: PolicyKnobs, step: Ragged, sampled_N: Tensor, state: State) -> State:
    """The state for the next step."""
    state = dict(state)
    if isinstance(knobs.kl, KlOptions) and knobs.kl.target is not None:
        measured = float(step.sum_rows(k1(sampled_N, step.tokens["ref_logp"])).mean())
        state["beta"] *= proportional(measured, knobs.kl.target, len(step), knobs.kl.horizon)
    if isinstance(knobs.advantage, MovingAverageOptions):
        keep = knobs.advantage.decay
        state["baseline"] = keep * state["baseline"] + (1 - keep) * float(step.rows["compared"].mean())
        state["baseline_weight"] = keep * state["baseline_weight"] + (1 - keep)
    return state


def proportional(measured: float, target: float, samples: int, horizon: int) -> float:
    """1 + clip(KL / target - 1, -0.2, 0.2) * samples / horizon (Ziegler 2019): the factor on beta."""
    error = min(max(measured / target - 1, -MOST), MOST)
    return 1 + error * samples / horizon


def doubled_or_halved(measured: float, target: float) -> float:
    """2 above 1.5 target, 1 / 2 below target / 1.5, else 1 (Schulman 2017): the factor on beta."""
    return 2.0 if measured > 1.5 * target else 0.5 if measured < target / 1.5 else 1.0


def updated_penalty(knobs: PolicyKnobs, step: Ragged, sampled_N: Tensor, state: State) -> State:
    """The state at the start of a step: the old policy's price follows how far the last batch's updates went.

    While a batch is reused its rows have an age, and how far the policy has moved on them is remembered; when fresh
    rows come the price is set once, by the last thing remembered.
    """
    target = knobs.penalty.target if isinstance(knobs.penalty, PenaltyOptions) else None
    if target is None:
        return dict(state)
    reused_N = step.spread(step.rows["age"]) > 0
    if bool(reused_N.any()):
        moved_N = forward_k3(step.tokens["anchor"], sampled_N)[reused_N]
        return {**state, "moved": float(moved_N.mean())}
    if state["moved"] == 0:
        return dict(state)
    return {**state, "penalty": state["penalty"] * doubled_or_halved(state["moved"], target), "moved": 0.0}


def with_coefficient(step: Ragged, name: str, state: State, like: Tensor) -> Ragged:
    """The state's price on each token, for losses that see no state."""
    return step.with_tokens(**{name: torch.full_like(like, state[name])})
