"""Policy objectives: a row's settings as prepare and loss, with the coefficients that follow a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from posttrain.algorithms.advantages import (
    Advantage,
    CriticOptions,
    MovingAverageOptions,
    Rewards,
    group_spread,
    whiten,
)
from posttrain.algorithms.objective import GRADIENT_COLUMNS, Loss, Prepared, State, require, supplied
from posttrain.algorithms.policy_knobs import KlOptions, PenaltyOptions, PolicyKnobs, SequenceKlOptions
from posttrain.algorithms.surrogates import Surrogate, Tokens
from posttrain.formulas.policy import ESTIMATORS, clipped_value, forward_k3, k1, truncated_importance
from posttrain.formulas.ragged import Ragged, fixed_length, kept_rows, sequence_mean, sequence_sum, token_mean

AGGREGATE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
}


@dataclass(frozen=True)
class PolicyObjective:
    """A row's settings as prepare and loss; `max_length` is the constant of that aggregation."""

    knobs: PolicyKnobs
    max_length: int
    reward_weights: tuple[float, ...] = ()
    """Of the columns of `reward_parts`, for an advantage that compares parts."""

    @cached_property
    def surrogate(self) -> Surrogate:
        """The entry of the table, or the user's own."""
        return self.knobs.term

    @cached_property
    def advantage(self) -> Advantage:
        """The entry of the table."""
        return self.knobs.compares

    @cached_property
    def needs(self) -> frozenset[str]:
        knobs = self.knobs
        wanted = {"reward", "truncated", "old_logp", "entropy"} | self.surrogate.needs
        wanted |= {"group"} if self.advantage.grouped else set()
        wanted |= {"reward_parts"} if self.advantage.by_part else set()
        wanted |= {"opponent"} if knobs.advantage.type == "win_rate" else set()
        wanted |= {"value"} if self.advantage.valued else set()
        wanted |= {"ref_logp"} if knobs.kl.type != "none" else set()
        wanted |= {"recomputed_logp"} if knobs.correction is not None else set()
        wanted |= {"kl_old"} if knobs.penalty.type == "exact" else set()
        if isinstance(knobs.penalty, PenaltyOptions) and knobs.penalty.target is not None:
            wanted |= {"anchor", "age"}
        wanted |= {"pretrain"} if knobs.ptx else set()
        return frozenset(wanted)

    @property
    def by_token(self) -> bool:
        return not self.surrogate.needs_sequence and self.needs & GRADIENT_COLUMNS <= {"entropy"}

    def initial_state(self) -> State:
        return initial_coefficients(self.knobs)

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Advantages, returns and weights of the whole step; the state's prices and baseline follow."""
        require(step, supplied(self.needs), "policy")
        if not self.knobs.ptx:
            return self._prepare(step, state)
        text_B = step.rows["pretrain"].bool()
        prepared = self._prepare(step.select(~text_B), state)
        text_N = step.spread(text_B).to(prepared.step.tokens["weight"].dtype)
        step = step.overlaid(prepared.step, ~text_B).with_tokens(ptx_weight=text_N / text_N.sum().clamp(min=1))
        return Prepared(step, prepared.state, prepared.metrics)

    def loss(self, micro: Ragged) -> Loss:
        """sum of weight * (-surrogate + beta KL + penalty KL(old || new) - entropy bonus), plus critic and text."""
        knobs, tokens = self.knobs, micro.tokens
        logp, weight_N = tokens["logp"], tokens["weight"]
        seen = self._tokens(micro, logp)
        item = -self._term(seen)
        if knobs.correction is not None:
            item = item * truncated_importance(tokens["recomputed_logp"], tokens["old_logp"], knobs.correction)
        if isinstance(knobs.kl, KlOptions) and knobs.kl.type == "loss":
            item = item + tokens["beta"] * ESTIMATORS[knobs.kl.estimator](logp, tokens["ref_logp"])
        if knobs.penalty.type != "none":
            item = item + tokens["penalty"] * self._moved(micro)
        if knobs.entropy:
            item = item - knobs.entropy * tokens["entropy"]
        total = (weight_N * item).sum()
        metrics = self._watched(micro, seen)
        metrics["policy_loss"] = total.detach()
        if isinstance(knobs.advantage, CriticOptions):
            edge = knobs.advantage.value_clip
            critic = clipped_value(tokens["value"], tokens["old_value"], tokens["return"], edge)
            metrics["value_loss"] = (weight_N * critic).sum().detach()
            total = total + knobs.advantage.value_coef * (weight_N * critic).sum()
        if knobs.ptx:
            text = -(tokens["ptx_weight"] * logp).sum()
            metrics["ptx_loss"] = text.detach()
            total = total + knobs.ptx * text
        return Loss(total, metrics)

    @torch.no_grad()
    def prepare_given(self, step: Ragged, state: State) -> Prepared:
        """The same for a step that has its `advantage` column already, and so needs no rewards."""
        return self._with_coefficients(*self._weighted(step, state))

    def _prepare(self, step: Ragged, state: State) -> Prepared:
        step, state = self._weighted(step, state)
        prepared = self._with_coefficients(self._advantage(step, state), state)
        return replace(prepared, metrics=self._seen(step, state))

    def _weighted(self, step: Ragged, state: State) -> tuple[Ragged, State]:
        """The step with the weight of each token, and the state with the penalty of this step."""
        dropped_B = step.rows["truncated"].bool() if self.knobs.truncated == "mask" else None
        if "opponent" in self.needs:
            opponent_B = step.rows["opponent"].bool()
            dropped_B = opponent_B if dropped_B is None else dropped_B | opponent_B
        sampled_N = self._sampled(step)
        kept_B = kept_rows(step.lengths_B, dropped_B, sampled_N)
        step = step.with_tokens(weight=self._weight(step.lengths_B, kept_B), share=token_mean(step.lengths_B, kept_B))
        return step, updated_penalty(self.knobs, step, sampled_N, state)

    def _with_coefficients(self, step: Ragged, state: State) -> Prepared:
        """A step with advantages, ready for its losses: whitened, with the surrogate's columns and the prices."""
        knobs = self.knobs
        if knobs.whiten:
            step = step.with_tokens(advantage=whiten(step.tokens["advantage"], step.tokens["weight"]))
        if self.surrogate.prepare is not None:
            step = step.with_tokens(**self.surrogate.prepare(step, knobs.surrogate))
        if knobs.kl.type == "loss":
            step = with_coefficient(step, "beta", state, step.tokens["weight"])
        if knobs.penalty.type != "none":
            step = with_coefficient(step, "penalty", state, step.tokens["weight"])
        return Prepared(step, updated_coefficients(knobs, step, self._sampled(step), state))

    def _sampled(self, step: Ragged) -> Tensor:
        """The sampling policy's log-probs, by the trainer's own numbers where they were asked for."""
        return step.tokens["old_logp" if self.knobs.correction is None else "recomputed_logp"]

    def _weight(self, lengths_B: Tensor, kept_B: Tensor) -> Tensor:
        if self.knobs.aggregation == "fixed_length":
            return fixed_length(lengths_B, kept_B, self.max_length)
        return AGGREGATE[self.knobs.aggregation](lengths_B, kept_B)

    def _advantage(self, step: Ragged, state: State) -> Ragged:
        """The advantage of each token, with the divergence charged in the reward where the row says so."""
        charge, dtype = self.knobs.kl, step.tokens["weight"].dtype
        charge_N = torch.zeros_like(step.tokens["weight"])
        if isinstance(charge, KlOptions) and charge.type != "loss":
            estimate = ESTIMATORS[charge.estimator]
            charge_N = state["beta"] * estimate(self._sampled(step).to(dtype), step.tokens["ref_logp"].to(dtype))
        mean = isinstance(charge, SequenceKlOptions) and charge.reduce == "mean"
        charge_B = step.mean_rows(charge_N) if mean else step.sum_rows(charge_N)
        rewards = Rewards(step, step.rows["reward"].to(dtype), charge_N, charge_B, state, self.reward_weights)
        columns = self.advantage.columns(rewards, self.knobs.advantage)
        return step.with_rows(compared=rewards.compared).with_tokens(**columns)

    def _tokens(self, step: Ragged, logp: Tensor) -> Tokens:
        """What the surrogate sees of a step or a part of one."""
        sampled_N = self._sampled(step)
        log_ratio = self.surrogate.log_ratio(logp, sampled_N, step.lengths_B)
        return Tokens(
            logp, sampled_N, log_ratio, log_ratio.exp(), step.tokens["advantage"], step.lengths_B, step.tokens
        )

    def _term(self, tokens: Tokens) -> Tensor:
        """The surrogate of each token; those that `prepare` dropped are terms of zero."""
        item = self.surrogate.item(tokens, self.knobs.surrogate)
        return item.masked_fill(tokens.columns["dropped"], 0.0) if "dropped" in tokens.columns else item

    def _moved(self, micro: Ragged) -> Tensor:
        if self.knobs.penalty.type == "exact":
            return micro.tokens["kl_old"]
        return forward_k3(micro.tokens["logp"], self._sampled(micro))

    @torch.no_grad()
    def _watched(self, micro: Ragged, seen: Tokens) -> dict[str, Tensor]:
        """Token means that add up over micro-batches."""
        share, tokens = micro.tokens["share"], micro.tokens
        found = {"entropy": (share * tokens["entropy"]).sum(), "ratio": (share * seen.ratio).sum()}
        if self.surrogate.clipped is not None:
            found["clip_fraction"] = (share * self.surrogate.clipped(seen, self.knobs.surrogate)).sum()
        if "dropped" in tokens:
            found["dropped"] = (share * tokens["dropped"]).sum()
        if "ref_logp" in self.needs:
            for name, estimate in ESTIMATORS.items():
                found[f"kl_{name}"] = (share * estimate(tokens["logp"], tokens["ref_logp"])).sum()
        if self.knobs.penalty.type != "none":
            found["kl_old"] = (share * self._moved(micro)).sum()
        return found

    def _seen(self, step: Ragged, state: State) -> dict[str, float]:
        reward_B = step.rows["reward"]
        seen = {
            "reward": float(reward_B.mean()),
            "reward_std": float(reward_B.std()) if len(step) > 1 else 0.0,
            "length": float(step.lengths_B.float().mean()),
            "truncated": float(step.rows["truncated"].float().mean()),
        }
        if "group" in step.rows:
            seen["groups_agreeing"] = float((group_spread(reward_B, step.rows["group"]) == 0).float().mean())
        if self.knobs.kl.type != "none":
            seen["beta"] = state["beta"]
        if self.knobs.penalty.type != "none":
            seen["penalty"] = state["penalty"]
        return seen


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
