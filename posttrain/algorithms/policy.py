"""Policy objectives: a row's knobs as prepare and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms import adaptive
from posttrain.algorithms.objective import GRADIENT_COLUMNS, Loss, Prepared, State, require, supplied
from posttrain.algorithms.policy_knobs import (
    CLIPPED,
    GROUPED,
    VALUED,
    ClipKnobs,
    KlKnobs,
    PenaltyKnobs,
    PolicyKnobs,
    TrpoKnobs,
    group_refusal,
    refusal,
    replay_refusal,
    reuse_refusal,
    truncation_refusal,
)
from posttrain.algorithms.policy_rows import POLICY_ROWS, PolicyRow
from posttrain.formulas import advantage as adv
from posttrain.formulas import clip, kl, value, weight
from posttrain.formulas.ragged import Ragged
from posttrain.formulas.ratio import LOG_RATIOS, truncated_importance

__all__ = [
    "POLICY_ROWS",
    "ClipKnobs",
    "KlKnobs",
    "PenaltyKnobs",
    "PolicyKnobs",
    "PolicyObjective",
    "PolicyRow",
    "TrpoKnobs",
    "group_refusal",
    "refusal",
    "replay_refusal",
    "reuse_refusal",
    "truncation_refusal",
]

COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "leave_one_out": adv.leave_one_out,
    "group_centred": adv.group_centred,
    "group_zscore": adv.group_zscore,
}

AGGREGATE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sequence_sum": weight.sequence_sum,
    "sequence_mean": weight.sequence_mean,
    "token_mean": weight.token_mean,
}


@dataclass(frozen=True)
class PolicyObjective:
    """A row's knobs as prepare and loss; `max_length` is the constant of the fixed-length aggregation."""

    knobs: PolicyKnobs
    max_length: int

    @property
    def needs(self) -> frozenset[str]:
        knobs = self.knobs
        wanted = {"reward", "truncated", "old_logp", "entropy"}
        wanted |= {"group"} if knobs.advantage in GROUPED else set()
        wanted |= {"opponent"} if knobs.advantage == "win_rate" else set()
        wanted |= {"value"} if knobs.advantage in VALUED else set()
        wanted |= {"ref_logp"} if knobs.kl.place != "none" else set()
        wanted |= {"recomputed_logp"} if knobs.correction is not None else set()
        wanted |= {"kl_old"} if knobs.penalty.kind == "exact" else set()
        wanted |= {"anchor", "age"} if knobs.penalty.kind != "none" and knobs.penalty.target is not None else set()
        wanted |= {"pretrain"} if knobs.ptx else set()
        return frozenset(wanted)

    @property
    def by_token(self) -> bool:
        others = self.needs & GRADIENT_COLUMNS
        return self.knobs.ratio == "token" and others <= {"entropy"}

    def initial_state(self) -> State:
        return adaptive.initial(self.knobs)

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
        ratio = LOG_RATIOS[knobs.ratio](logp, self._sampled(micro), micro.lengths_B).exp()
        item = -self._surrogate(ratio, logp, tokens["advantage"])
        if knobs.correction is not None:
            item = item * truncated_importance(tokens["recomputed_logp"], tokens["old_logp"], knobs.correction)
        if knobs.kl.place == "loss":
            item = item + tokens["beta"] * kl.ESTIMATORS[knobs.kl.estimator](logp, tokens["ref_logp"])
        if knobs.penalty.kind != "none":
            item = item + tokens["penalty"] * self._moved(micro)
        if knobs.entropy:
            item = item - knobs.entropy * tokens["entropy"]
        total = (weight_N * item).sum()
        metrics = self._watched(micro, ratio)
        metrics["policy_loss"] = total.detach()
        if "value" in self.needs:
            critic = value.clipped_value(tokens["value"], tokens["old_value"], tokens["return"], knobs.value_clip)
            metrics["value_loss"] = (weight_N * critic).sum().detach()
            total = total + knobs.value_coef * (weight_N * critic).sum()
        if knobs.ptx:
            text = -(tokens["ptx_weight"] * logp).sum()
            metrics["ptx_loss"] = text.detach()
            total = total + knobs.ptx * text
        return Loss(total, metrics)

    def _prepare(self, step: Ragged, state: State) -> Prepared:
        knobs, sampled_N = self.knobs, self._sampled(step)
        dropped_B = step.rows["truncated"].bool() if knobs.truncated == "mask" else None
        if "opponent" in self.needs:
            opponent_B = step.rows["opponent"].bool()
            dropped_B = opponent_B if dropped_B is None else dropped_B | opponent_B
        kept_B = weight.kept(step.lengths_B, dropped_B, sampled_N)
        step = step.with_tokens(
            weight=self._weight(step.lengths_B, kept_B), share=weight.token_mean(step.lengths_B, kept_B)
        )
        state = adaptive.repriced(knobs, step, sampled_N, state)
        step = self._advantage(step, state)
        if knobs.whiten:
            step = step.with_tokens(advantage=adv.whiten(step.tokens["advantage"], step.tokens["weight"]))
        if knobs.kl.place == "loss":
            step = adaptive.priced(step, "beta", state, step.tokens["weight"])
        if knobs.penalty.kind != "none":
            step = adaptive.priced(step, "penalty", state, step.tokens["weight"])
        return Prepared(step, adaptive.followed(knobs, step, sampled_N, state), self._seen(step, state))

    def _sampled(self, step: Ragged) -> Tensor:
        """The sampling policy's log-probs, by the trainer's own numbers where they were asked for."""
        return step.tokens["old_logp" if self.knobs.correction is None else "recomputed_logp"]

    def _weight(self, lengths_B: Tensor, kept_B: Tensor) -> Tensor:
        if self.knobs.aggregation == "fixed_length":
            return weight.fixed_length(lengths_B, kept_B, self.max_length)
        return AGGREGATE[self.knobs.aggregation](lengths_B, kept_B)

    def _advantage(self, step: Ragged, state: State) -> Ragged:
        """The advantage of each token, with the divergence charged in the reward where the row says so."""
        knobs = self.knobs
        dtype = step.tokens["weight"].dtype
        reward_B, charge_N = step.rows["reward"].to(dtype), torch.zeros_like(step.tokens["weight"])
        if knobs.kl.place.startswith("reward"):
            estimate = kl.ESTIMATORS[knobs.kl.estimator]
            charge_N = state["beta"] * estimate(self._sampled(step).to(dtype), step.tokens["ref_logp"].to(dtype))
        if knobs.advantage in ("gae", "return_to_go"):
            reward_N = adv.at_last_token(reward_B, step.lengths_B) - charge_N
            if knobs.advantage == "return_to_go":
                return step.with_tokens(advantage=adv.return_to_go(reward_N, step.lengths_B, knobs.gamma))
            value_N = step.tokens["old_value"].to(dtype)
            advantage, returns = adv.gae(reward_N, value_N, step.lengths_B, gamma=knobs.gamma, lam=knobs.lam)
            return step.with_tokens(**{"advantage": advantage, "return": returns})
        mean = knobs.kl.place == "reward_sequence" and knobs.kl.reduce == "mean"
        charge_B = step.mean_rows(charge_N) if mean else step.sum_rows(charge_N)
        if knobs.advantage == "win_rate":  # the judge sees the rewards alone; the price of moving comes after
            won_B = adv.win_rate(reward_B, step.rows["opponent"], step.rows["group"], knobs.win_scale)
            return step.with_tokens(advantage=step.spread(won_B - charge_B))
        reward_B = reward_B - charge_B
        step = step.with_rows(compared=reward_B)
        if knobs.advantage == "outcome_value":
            returns = step.spread(reward_B)
            return step.with_tokens(**{"advantage": returns - step.tokens["old_value"], "return": returns})
        return step.with_tokens(advantage=step.spread(self._compared(step, state)))

    def _compared(self, step: Ragged, state: State) -> Tensor:
        reward_B = step.rows["compared"]
        if self.knobs.advantage == "batch_centred":
            return adv.batch_centred(reward_B)
        if self.knobs.advantage == "moving_average":
            return adv.moving_average(reward_B, adaptive.baseline(state, reward_B))
        return COMPARE[self.knobs.advantage](reward_B, step.rows["group"])

    def _surrogate(self, ratio: Tensor, logp: Tensor, advantage: Tensor) -> Tensor:
        edges = self.knobs.clip
        match self.knobs.surrogate:
            case "score":
                return clip.score_function(logp, advantage)
            case "unclipped":
                return clip.unclipped(ratio, advantage)
            case "weight":
                return clip.clipped_weight(ratio, logp, advantage, edges.low, edges.high)
            case _:
                return clip.pessimistic(ratio, advantage, edges.low, edges.high)

    def _moved(self, micro: Ragged) -> Tensor:
        if self.knobs.penalty.kind == "exact":
            return micro.tokens["kl_old"]
        return kl.forward_k3(micro.tokens["logp"], self._sampled(micro))

    @torch.no_grad()
    def _watched(self, micro: Ragged, ratio: Tensor) -> dict[str, Tensor]:
        """Token means that add up over micro-batches."""
        share, tokens, edges = micro.tokens["share"], micro.tokens, self.knobs.clip
        seen = {"entropy": (share * tokens["entropy"]).sum(), "ratio": (share * ratio).sum()}
        if self.knobs.surrogate in CLIPPED:
            cut = clip.outside(ratio, tokens["advantage"], edges.low, edges.high)
            if self.knobs.surrogate == "weight":
                cut = clip.beyond(ratio, edges.low, edges.high)
            seen["clip_fraction"] = (share * cut).sum()
        if "ref_logp" in self.needs:
            for name, estimate in kl.ESTIMATORS.items():
                seen[f"kl_{name}"] = (share * estimate(tokens["logp"], tokens["ref_logp"])).sum()
        if self.knobs.penalty.kind != "none":
            seen["kl_old"] = (share * self._moved(micro)).sum()
        return seen

    def _seen(self, step: Ragged, state: State) -> dict[str, float]:
        reward_B = step.rows["reward"]
        seen = {
            "reward": float(reward_B.mean()),
            "reward_std": float(reward_B.std()) if len(step) > 1 else 0.0,
            "length": float(step.lengths_B.float().mean()),
            "truncated": float(step.rows["truncated"].float().mean()),
        }
        if "group" in step.rows:
            seen["groups_agreeing"] = float((adv.group_spread(reward_B, step.rows["group"]) == 0).float().mean())
        if self.knobs.kl.place != "none":
            seen["beta"] = state["beta"]
        if self.knobs.penalty.kind != "none":
            seen["penalty"] = state["penalty"]
        return seen
