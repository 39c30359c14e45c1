"""P3O: pairwise PPO. The samples of a prompt are compared in pairs, and both ratios count."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages import group_sums
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import ClipOptions
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.formulas.policy import CAP, product_log_ratio
from posttrain.formulas.ragged import Ragged, repeat_to_tokens


def compared(step: Ragged, options: ClipOptions) -> dict[str, Tensor]:  # noqa: ARG001
    """Return mean_j max(d, 0) and mean_j min(d, 0) of each sample, d = (A_i - A_j) s_j over its prompt's samples j.

    The ratios s_j are those at the start of the step, so that a prompt's samples may be in different micro-batches.
    """
    log_ratio_N = step.tokens["step_start_logp"] - step.tokens["sampling_logp"]
    ratio_B = step.sum_rows(log_ratio_N).clamp(-CAP, CAP).exp()
    advantage_B = step.mean_rows(step.tokens["advantage"])
    group_B = step.rows["group"]
    held_B = (step.lengths_B > 0).to(advantage_B.dtype)  # a row without a token is no sample
    apart_BB = (advantage_B[:, None] - advantage_B) * ratio_B * (group_B[:, None] == group_B) * held_B
    count_B = group_sums(held_B, group_B)[0].clamp(min=1)
    better_B, worse_B = apart_BB.clamp(min=0).sum(1) / count_B, apart_BB.clamp(max=0).sum(1) / count_B
    return {"better": step.repeat_to_tokens(better_B), "worse": step.repeat_to_tokens(worse_B)}


def p3o(tokens: Tokens, options: ClipOptions) -> Tensor:
    """Return mean_j min(s_i d, clip(s_i, 1 - low, 1 + high) d) of each sequence i, spread over its tokens (Wu 2023)."""
    held_N = tokens.ratio.clamp(max=1 + options.high) * tokens.columns["better"]
    held_N = held_N + tokens.ratio.clamp(min=1 - options.low) * tokens.columns["worse"]
    return held_N / repeat_to_tokens(tokens.lengths, tokens.lengths, held_N.numel())


def clipped(tokens: Tokens, options: ClipOptions) -> Tensor:
    """Return the share of a sequence's comparisons that have lost their gradient."""
    better, worse = tokens.columns["better"], -tokens.columns["worse"]
    lost = torch.where(tokens.ratio > 1 + options.high, better, 0.0) + torch.where(
        tokens.ratio < 1 - options.low, worse, 0.0
    )
    return lost / (better + worse).clamp(min=1e-12)


FORMULA = "mean_j min(s d, clip(s, 1 - low, 1 + high) d), d = (A - A_j) s_j, s = exp(sum_t log r)"
SURROGATES = {
    "p3o": Surrogate(
        ClipOptions,
        p3o,
        FORMULA,
        clipped=clipped,
        log_ratio=product_log_ratio,
        needs_sequence=True,
        per_sequence=True,
        aggregation="sequence_sum",
        needs=frozenset({"group", "step_start_logp"}),
        prepare=compared,
    )
}
ROWS = {
    "p3o": AlgorithmRow(
        "Wu 2023, arXiv:2310.00212",
        "-mean_ij min(s_i d, clip(s_i) d), d = (A_i - A_j) s_j, A = R - mean of the siblings' R, s = exp(sum_t log r)",
        {
            "advantage": "leave_one_out",
            "surrogate": "p3o",
            "aggregation": "sequence_sum",
            "kl": {"type": "reward_sequence", "estimator": "k1", "beta": 0.05},
        },
    )
}
