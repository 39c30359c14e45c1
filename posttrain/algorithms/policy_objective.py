"""The policy objective (GRPO, PPO and others), and coefficients that follow a target KL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, CriticOptions, MovingAverageOptions, Rewards, whiten
from posttrain.algorithms.corrections import correction_weights
from posttrain.algorithms.objective import (
    GRADIENT_COLUMNS,
    REWARD_PARTS,
    Loss,
    Moving,
    Prepared,
    State,
    columns_before_prepare,
    require_columns,
)
from posttrain.algorithms.policy_config import KlOptions, PenaltyOptions, PolicyConfig, SequenceKlOptions
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.formulas.policy import ESTIMATORS, clipped_value, forward_k3, k1
from posttrain.formulas.ragged import Ragged, fixed_length, kept_rows, sequence_mean, sequence_sum, token_mean
from posttrain.settings.choices import Options

AGGREGATE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
}


@dataclass(frozen=True)
class PolicyObjective:
    """The objective of a preset in POLICY_ROWS. `max_length`: the constant of the aggregation fixed_length."""

    config: PolicyConfig
    max_length: int

    @cached_property
    def surrogate(self) -> Surrogate:
        """The surrogate: an entry of the table, or the user's own surrogate."""
        return self.config.surrogate_entry

    @cached_property
    def advantage(self) -> Advantage:
        """The advantage: an entry of the table."""
        return self.config.advantage_entry

    @property
    def corrected(self) -> bool:
        """True if the trainer's log-probs replace the sampler's, with weights that correct the difference."""
        return self.config.correction.type != "none"

    @cached_property
    def needs(self) -> frozenset[str]:
        config = self.config
        needs = {"reward", "truncated", "old_logp", "entropy"} | self.surrogate.needs
        needs |= {"group"} if self.advantage.grouped else set()
        needs |= {REWARD_PARTS} if self.advantage.by_part else set()
        needs |= {"opponent"} if config.advantage.type == "win_rate" else set()
        needs |= {"value"} if self.advantage.valued else set()
        needs |= {"ref_logp"} if config.kl.type != "none" else set()
        needs |= {"recomputed_logp"} if self.corrected else set()
        needs |= {"kl_old"} if config.penalty.type == "exact" else set()
        if isinstance(config.penalty, PenaltyOptions) and config.penalty.target is not None:
            needs |= {"step_start_logp", "age"}
        needs |= {"fresh"} if isinstance(config.advantage, MovingAverageOptions) or _follows_a_target(config) else set()
        needs |= {"pretrain"} if config.ptx else set()
        return frozenset(needs)

    @property
    def by_token(self) -> bool:
        return not self.surrogate.needs_sequence and self.needs & GRADIENT_COLUMNS <= {"entropy"}

    @property
    def entropy_in_loss(self) -> bool:
        return bool(self.config.entropy)

    def initial_state(self) -> State:
        return initial_coefficients(self.config)

    @torch.no_grad()
    def prepare(self, step: Ragged, state: State) -> Prepared:
        """Return the step with advantages, returns and token weights. Update adaptive coefficients and the baseline."""
        require_columns(step, columns_before_prepare(self.needs), "policy")
        if not self.config.ptx:
            return self._prepare_held(step, state)
        text_B = step.rows["pretrain"].bool()
        prepared = self._prepare_held(step.select(~text_B), state)
        text_N = step.repeat_to_tokens(text_B).to(prepared.step.tokens["weight"].dtype)
        step = step.overlaid(prepared.step, ~text_B).with_tokens(ptx_weight=text_N / text_N.sum().clamp(min=1))
        return replace(prepared, step=step)

    def loss(self, micro: Ragged, state: State) -> Loss:
        """Return sum(weight * (-surrogate + beta KL + penalty KL(old || new) - entropy bonus)) plus critic and text."""
        config, tokens = self.config, micro.tokens
        logp, weight_N = tokens["logp"], tokens["weight"]
        inputs, options = self._surrogate_inputs(micro, logp), self._options(state)
        loss_N = -self._surrogate_terms(inputs, options)
        if self.corrected:
            loss_N = loss_N * tokens["correction"]
        if isinstance(config.kl, KlOptions) and config.kl.type == "loss":
            loss_N = loss_N + state["beta"] * ESTIMATORS[config.kl.estimator](logp, tokens["ref_logp"])
        if config.penalty.type != "none":
            loss_N = loss_N + state["penalty"] * self._kl_to_old(micro)
        if config.entropy:
            loss_N = loss_N - config.entropy * tokens["entropy"]
        total = (weight_N * loss_N).sum()
        metrics = self._token_metrics(micro, inputs, options)
        metrics["policy_loss"] = total.detach()
        if isinstance(config.advantage, CriticOptions):
            clip = config.advantage.value_clip
            value_loss_N = clipped_value(tokens["value"], tokens["old_value"], tokens["return"], clip)
            metrics["value_loss"] = (weight_N * value_loss_N).sum().detach()
            total = total + config.advantage.value_coef * (weight_N * value_loss_N).sum()
        if config.ptx:
            ptx_loss = -(tokens["ptx_weight"] * logp).sum()
            metrics["ptx_loss"] = ptx_loss.detach()
            total = total + config.ptx * ptx_loss
        return Loss(total, metrics)

    @torch.no_grad()
    def prepare_given(self, step: Ragged, state: State) -> Prepared:
        """Prepare a step that already has the column `advantage`, so rewards are not needed."""
        return self._ready(*self._weighted(step, state))

    def _prepare_held(self, step: Ragged, state: State) -> Prepared:
        """Prepare the rows that have tokens. A row without any is not a sample of its group and has no KL."""
        held_B = step.lengths_B > 0
        if bool(held_B.all()) or not bool(held_B.any()):
            return self._prepare(step, state)
        prepared = self._prepare(step.select(held_B), state)
        return replace(prepared, step=step.overlaid(prepared.step, held_B))

    def _prepare(self, step: Ragged, state: State) -> Prepared:
        step, state = self._weighted(step, state)
        prepared = self._ready(self._advantage(step, state), state)
        counts = bool(step.tokens["token_mean_weight"].any())
        return replace(prepared, metrics=self._step_metrics(prepared.step, state), counts=counts)

    def _weighted(self, step: Ragged, state: State) -> tuple[Ragged, State]:
        """Return the step with each token's weight, and the state with this step's penalty."""
        dropped_B = step.rows["truncated"].bool() if self.config.truncated == "mask" else None
        if "opponent" in self.needs:
            opponent_B = step.rows["opponent"].bool()
            dropped_B = opponent_B if dropped_B is None else dropped_B | opponent_B
        old_logp_N = self._sampling_logp(step)
        kept_B = kept_rows(step.lengths_B, dropped_B, old_logp_N)
        step = step.with_tokens(
            weight=self._weight(step.lengths_B, kept_B), token_mean_weight=token_mean(step.lengths_B, kept_B)
        )
        return step, updated_penalty(self.config, step, old_logp_N, started(self.config, state))

    def _ready(self, step: Ragged, state: State) -> Prepared:
        """Return a step with advantages, ready for the loss: whitened, and with the surrogate's columns."""
        config = self.config
        if config.whiten:
            step = step.with_tokens(advantage=whiten(step.tokens["advantage"], step.tokens["weight"]))
        if self.corrected:
            step = step.with_tokens(correction=correction_weights(step, config.correction))
        if self.surrogate.prepare is not None:
            given = step.with_tokens(sampling_logp=self._sampling_logp(step))
            step = step.with_tokens(**self.surrogate.prepare(given, self._options(state)))
        return Prepared(step, updated_coefficients(config, step, self._sampling_logp(step), state))

    def _sampling_logp(self, step: Ragged) -> Tensor:
        """Return the sampling policy's log-probs: the trainer's if a correction is set, else the sampler's."""
        return step.tokens["recomputed_logp" if self.corrected else "old_logp"]

    def _weight(self, lengths_B: Tensor, kept_B: Tensor) -> Tensor:
        if self.config.aggregation == "fixed_length":
            return fixed_length(lengths_B, kept_B, self.max_length)
        return AGGREGATE[self.config.aggregation](lengths_B, kept_B)

    def _advantage(self, step: Ragged, state: State) -> Ragged:
        """Return each token's advantage, with the KL penalty in the reward if the settings say so."""
        kl, dtype = self.config.kl, step.tokens["weight"].dtype
        kl_penalty_N = torch.zeros_like(step.tokens["weight"])
        if isinstance(kl, KlOptions) and kl.type != "loss":
            estimate = ESTIMATORS[kl.estimator]
            kl_penalty_N = state["beta"] * estimate(
                self._sampling_logp(step).to(dtype), step.tokens["ref_logp"].to(dtype)
            )
        mean = isinstance(kl, SequenceKlOptions) and kl.reduce == "mean"
        kl_penalty_B = step.mean_rows(kl_penalty_N) if mean else step.sum_rows(kl_penalty_N)
        rewards = Rewards(step, step.rows["reward"].to(dtype), kl_penalty_N, kl_penalty_B, state)
        columns = self.advantage.columns(rewards, self.config.advantage)
        return step.with_rows(penalised_reward=rewards.penalised).with_tokens(**columns)

    def _surrogate_inputs(self, step: Ragged, logp: Tensor) -> Tokens:
        """Return the surrogate's input columns from a step or a part of one."""
        old_logp_N = self._sampling_logp(step)
        log_ratio = self.surrogate.log_ratio(logp, old_logp_N, step.lengths_B)
        return Tokens(
            logp, old_logp_N, log_ratio, log_ratio.exp(), step.tokens["advantage"], step.lengths_B, step.tokens
        )

    def _options(self, state: State) -> Options:
        """Return the surrogate's options at a state's step."""
        options = self.config.surrogate
        return options.at(state["step"]) if isinstance(options, Moving) and options.ends else options

    def _surrogate_terms(self, tokens: Tokens, options: Options) -> Tensor:
        """Return the surrogate of each token; 0 for tokens that `prepare` dropped."""
        terms_N = self.surrogate.term(tokens, options)
        return terms_N.masked_fill(tokens.columns["dropped"], 0.0) if "dropped" in tokens.columns else terms_N

    def _kl_to_old(self, micro: Ragged) -> Tensor:
        if self.config.penalty.type == "exact":
            return micro.tokens["kl_old"]
        return forward_k3(micro.tokens["logp"], self._sampling_logp(micro))

    @torch.no_grad()
    def _token_metrics(self, micro: Ragged, inputs: Tokens, options: Options) -> dict[str, Tensor]:
        """Return means over the step's tokens, as sums that add up over micro-batches."""
        mean_N, tokens, ratio = micro.tokens["token_mean_weight"], micro.tokens, inputs.ratio
        # 1 is among the ratios of the extremes, so that a part without counted tokens has some
        extremes_N = torch.cat([ratio.masked_fill(mean_N == 0, 1.0), ratio.new_ones(1)])
        metrics = {"entropy": (mean_N * tokens["entropy"]).sum(), **_moments("ratio", ratio, mean_N)}
        metrics |= {"ratio_min": extremes_N.amin(), "ratio_max": extremes_N.amax()}
        if self.surrogate.clipped is not None:
            clipped_N = mean_N * self.surrogate.clipped(inputs, options)
            metrics["clip_fraction"] = clipped_N.sum()
            metrics |= {"clip_low": (clipped_N * (ratio < 1)).sum(), "clip_high": (clipped_N * (ratio > 1)).sum()}
        if self.corrected:
            metrics |= _moments("correction", tokens["correction"], mean_N)
        if "dropped" in tokens:
            metrics["dropped"] = (mean_N * tokens["dropped"]).sum()
        if "ref_logp" in self.needs:
            for name, estimate in ESTIMATORS.items():
                metrics[f"kl_{name}"] = (mean_N * estimate(tokens["logp"], tokens["ref_logp"])).sum()
        if self.config.penalty.type != "none":
            metrics["kl_old"] = (mean_N * self._kl_to_old(micro)).sum()
        return metrics

    def _step_metrics(self, step: Ragged, state: State) -> dict[str, float]:
        if "opponent" in self.needs:
            step = step.select(~step.rows["opponent"].bool())
        reward_B = step.rows["reward"]
        metrics = {
            "reward": float(reward_B.mean()),
            "reward_std": float(reward_B.std()) if len(step) > 1 else 0.0,
            "length": float(step.lengths_B.float().mean()),
            "truncated": float(step.rows["truncated"].float().mean()),
        }
        if self.config.kl.type != "none":
            metrics["beta"] = state["beta"]
        if self.config.penalty.type != "none":
            metrics["penalty"] = state["penalty"]
        if "return" in step.tokens:
            metrics["explained_variance"] = explained_variance(step)
        return metrics


def explained_variance(step: Ragged) -> float:
    """Return 1 - Var(return - value) / Var(return) over a step's counted tokens, with the values of its start.

    1: the critic knows the returns; 0: it does no better than their mean; below 0: worse, at the least -1000, where
    rounding would decide the digits. 0 if all returns are equal. As sums of advantages and values, equal returns may
    differ by rounding.
    """
    counted_N = step.tokens["token_mean_weight"] > 0
    return_N, value_N = (step.tokens[name][counted_N].double() for name in ("return", "old_value"))
    if len(return_N) < FEWEST:
        return 0.0
    scale, spread = torch.cat([return_N, value_N]).abs().max(), return_N.var(correction=0)
    if spread.sqrt() <= ROUNDING * scale:
        return 0.0
    return max(LEAST_EXPLAINED, float(1 - (return_N - value_N).var(correction=0) / spread))


def _moments(name: str, values_N: Tensor, mean_N: Tensor) -> dict[str, Tensor]:
    """Return the mean of weights and of their squares, from which the effective sample size `NAME_ess` is computed."""
    return {name: (mean_N * values_N).sum(), f"{name}_square": (mean_N * values_N.square()).sum()}


FEWEST = 2
"""The fewest tokens that have a variance."""
LEAST_EXPLAINED = -1000.0
ROUNDING = 1e-5
"""Returns whose standard deviation is at most this part of the largest number count as equal."""
MAX_RELATIVE_ERROR = 0.2
"""The limit of the KL's relative error in one update of beta (Ziegler 2019)."""


def initial_coefficients(config: PolicyConfig) -> State:
    """Return the state before the first step."""
    state: State = {"beta": config.kl.beta if isinstance(config.kl, KlOptions) else 0.0}
    if _follows_a_target(config):
        state["next_beta"] = state["beta"]
    if any(isinstance(options, Moving) and options.ends for options in (config.kl, config.surrogate)):
        state |= {"step": 0.0, "next_step": 0.0}
    if isinstance(config.penalty, PenaltyOptions):
        state |= {"penalty": config.penalty.beta, "last_kl_old": 0.0}
    if isinstance(config.advantage, MovingAverageOptions):
        state |= {"baseline": 0.0, "baseline_weight": 0.0}
    return state


def started(config: PolicyConfig, state: State) -> State:
    """Return the state with this step's number and its beta, from the last step's update or the schedule."""
    state = {**state, "beta": state["next_beta"]} if "next_beta" in state else dict(state)
    if "next_step" in state:
        state["step"] = state["next_step"]
    if isinstance(config.kl, KlOptions) and config.kl.end is not None:
        state["beta"] = config.kl.at(state["step"]).beta
    return state


def updated_coefficients(config: PolicyConfig, step: Ragged, old_logp_N: Tensor, state: State) -> State:
    """Return the states for this step's loss and for the next step. A row counts once, however often it is used."""
    state = dict(state)
    if "step" in state:
        state["next_step"] = state["step"] + 1
    fresh_B = step.rows.get("fresh")
    if fresh_B is None or not fresh_B.any():
        return state
    if isinstance(config.kl, KlOptions) and config.kl.target is not None:
        own_B = fresh_B & ~step.rows["opponent"].bool() if "opponent" in step.rows else fresh_B
        kl_B = step.sum_rows(k1(old_logp_N, step.tokens["ref_logp"]))[own_B]
        if len(kl_B):
            factor = proportional_factor(float(kl_B.mean()), config.kl.target, len(kl_B), config.kl.horizon)
            state["next_beta"] = state["beta"] * factor
    if isinstance(config.advantage, MovingAverageOptions):
        decay, reward = config.advantage.decay, float(step.rows["penalised_reward"][fresh_B].mean())
        state["baseline"] = decay * state["baseline"] + (1 - decay) * reward
        state["baseline_weight"] = decay * state["baseline_weight"] + (1 - decay)
    return state


def _follows_a_target(config: PolicyConfig) -> bool:
    return isinstance(config.kl, KlOptions) and config.kl.target is not None


def proportional_factor(measured: float, target: float, samples: int, horizon: int) -> float:
    """Return beta's factor 1 + clip(KL / target - 1, -0.2, 0.2) * min(samples / horizon, 1) > 0 (Ziegler 2019)."""
    error = min(max(measured / target - 1, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
    return 1 + error * min(samples / horizon, 1.0)


def doubling_factor(measured: float, target: float) -> float:
    """Return beta's factor: 2 above 1.5 target, 1 / 2 below target / 1.5, else 1 (Schulman 2017)."""
    return 2.0 if measured > 1.5 * target else 0.5 if measured < target / 1.5 else 1.0


def updated_penalty(config: PolicyConfig, step: Ragged, old_logp_N: Tensor, state: State) -> State:
    """Return the state at the start of a step. The coefficient of KL(old || new) follows the last batch's KL.

    While a batch is reused (its rows have an age), the state stores the policy's KL to the sampling policy. With the
    first fresh rows, the coefficient is updated once from the last stored KL.
    """
    target = config.penalty.target if isinstance(config.penalty, PenaltyOptions) else None
    if target is None:
        return dict(state)
    reused_N = step.repeat_to_tokens(step.rows["age"]) > 0
    if bool(reused_N.any()):
        kl_N = forward_k3(step.tokens["step_start_logp"], old_logp_N)[reused_N]
        return {**state, "last_kl_old": float(kl_N.mean())}
    if state["last_kl_old"] == 0:
        return dict(state)
    return {**state, "penalty": state["penalty"] * doubling_factor(state["last_kl_old"], target), "last_kl_old": 0.0}
