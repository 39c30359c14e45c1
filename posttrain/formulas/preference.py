"""Preference losses on implicit rewards: `h` of the chosen answer, `l` of the rejected one, `r` of an unpaired one.

With a reference h = logp - ref_logp of the chosen answer; without one h = logp. Sums or means over tokens are the
caller's choice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu, sigmoid

# ruff: noqa: E741  (`l` is the definitions' name)

LOG_HALF = -math.log(2.0)
NEAR_ZERO = -1e-6
"""A mean log-prob above this counts as this: the odds of a certain answer are infinite."""


def dpo(h: Tensor, l: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - s) logsigmoid(beta (h - l)) - s logsigmoid(-beta (h - l)) (Rafailov 2023; s > 0 is cDPO, Mitchell 2023)."""
    margin = beta * (h - l)
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def robust_dpo(h: Tensor, l: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """(-(1 - s) logsigmoid(m) + s logsigmoid(-m)) / (1 - 2 s), m = beta (h - l): flips cancel (Chowdhury 2024)."""
    margin = beta * (h - l)
    flipped = (1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return -flipped / (1 - 2 * label_smoothing)


def exo(h: Tensor, l: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """KL(p || q) of p = (sigmoid(m), sigmoid(-m)), q = (1 - s, s), m = beta (h - l) (EXO on pairs, Ji 2024)."""
    margin = beta * (h - l)
    won, lost = logsigmoid(margin), logsigmoid(-margin)
    return won.exp() * (won - math.log1p(-label_smoothing)) + lost.exp() * (lost - math.log(label_smoothing))


def ipo(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """(h - l - 1 / (2 beta))^2 (Azar 2023)."""
    return (h - l - 1 / (2 * beta)).square()


def apo_zero(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """1 - sigmoid(beta h) + sigmoid(beta l): chosen up, rejected down (D'Oosterlinck 2024)."""
    return sigmoid(-beta * h) + sigmoid(beta * l)


def apo_down(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """sigmoid(beta h) + 1 - sigmoid(beta (h - l)): both down, rejected more (D'Oosterlinck 2024)."""
    return sigmoid(beta * h) + sigmoid(-beta * (h - l))


def slic(h: Tensor, l: Tensor, delta: float) -> Tensor:
    """max(0, delta - (h - l)) (SLiC-HF, Zhao 2023)."""
    return relu(delta - (h - l))


def simpo(h: Tensor, l: Tensor, beta: float, gamma: float) -> Tensor:
    """-logsigmoid(beta (h - l) - gamma) on mean log-probs (Meng 2024)."""
    return -logsigmoid(beta * (h - l) - gamma)


def orpo(h: Tensor, l: Tensor, beta: float) -> Tensor:
    """beta * -logsigmoid(logodds(h) - logodds(l)) on mean log-probs (Hong 2024; beta is the paper's lambda)."""
    return -beta * logsigmoid(log_odds(h) - log_odds(l))


def log_odds(m: Tensor) -> Tensor:
    """log(p / (1 - p)) = m - log(1 - exp(m)) of m = log p < 0, exact near 0 and far below it."""
    m = m.clamp(max=NEAR_ZERO)
    near = m > LOG_HALF
    # Each branch gets a harmless argument where it is not used, or its infinite gradient times 0 would be nan.
    close = torch.log(-torch.expm1(m.where(near, m.new_full((), LOG_HALF))))
    far = torch.log1p(-torch.exp(m.where(~near, m.new_full((), LOG_HALF))))
    return m - close.where(near, far)


def kto(r: Tensor, label: Tensor, z0: Tensor, beta: float, desirable: float = 1.0, undesirable: float = 1.0) -> Tensor:
    """lambda_D (1 - sigmoid(beta (r - z0))) or lambda_U (1 - sigmoid(beta (z0 - r))) (Ethayarajh 2024)."""
    gain = _signed(r - z0, label)
    return _label_weight(gain, label, desirable, undesirable) * sigmoid(-beta * gain)


def bco(
    r: Tensor, label: Tensor, shift: Tensor, beta: float, desirable: float = 1.0, undesirable: float = 1.0
) -> Tensor:
    """lambda_D -logsigmoid(beta (r - shift)) or lambda_U -logsigmoid(-beta (r - shift)) (Jung 2024)."""
    gain = _signed(r - shift, label)
    return -_label_weight(gain, label, desirable, undesirable) * logsigmoid(beta * gain)


def _signed(gain: Tensor, label: Tensor) -> Tensor:
    return gain.where(label > 0, -gain)


def _label_weight(like: Tensor, label: Tensor, desirable: float, undesirable: float) -> Tensor:
    return like.new_full((), desirable).where(label > 0, like.new_full((), undesirable))


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """-logsigmoid(s_c - s_r - margin) (Bradley and Terry 1952; margin: Llama 2)."""
    return -logsigmoid(chosen - rejected - margin)


def comparisons(rank_B: Tensor, item_B: Tensor) -> tuple[Tensor, Tensor]:
    """Every (winner, loser) among the rows of an item, as row indices; the lower rank wins, ties are left out."""
    order_B = torch.argsort(item_B, stable=True)
    rank_S, item_S = rank_B[order_B], item_B[order_B]
    met_SS = (item_S[:, None] == item_S[None, :]) & (rank_S[:, None] < rank_S[None, :])
    won, lost = met_SS.nonzero(as_tuple=True)
    return order_B[won], order_B[lost]


def centring(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(s_c + s_r)^2: pulls scores towards 0, which Bradley-Terry leaves free (Eisenstein 2023)."""
    return (chosen + rejected).square()


def demonstration_bias(score_B: Tensor) -> Tensor:
    """-mean(s) over demonstrations: added to the head's bias, demonstrations average 0 (Ouyang 2022)."""
    if score_B.numel() == 0 or not bool(score_B.isfinite().all()):
        raise ValueError("centring needs finite scores of at least one demonstration")
    return -score_B.mean()
