from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.preference.aot import aot, by_margin, by_side, of_same_rank
from posttrain.algorithms.preference.apo import apo_down, apo_zero
from posttrain.algorithms.preference.bco import bco
from posttrain.algorithms.preference.dpo import dpo
from posttrain.algorithms.preference.exo import exo
from posttrain.algorithms.preference.ipo import ipo
from posttrain.algorithms.preference.kto import kto
from posttrain.algorithms.preference.nca import nca
from posttrain.algorithms.preference.orpo import log_odds, orpo
from posttrain.algorithms.preference.robust_dpo import robust_dpo
from posttrain.algorithms.preference.simpo import simpo
from posttrain.algorithms.preference.slic import slic
from posttrain.algorithms.preference.sppo import sppo
from posttrain.formulas.reward import bradley_terry, centring, comparisons, demonstration_bias


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


H, L = t(2), t(-1)  # a gap of 3
QUARTER = math.log(3)  # sigmoid(log 3) = 3 / 4


def test_pair_losses_by_hand() -> None:
    beta = QUARTER / 3  # beta (h - l) = log 3, so sigmoid is 3/4
    assert_close(dpo(H, L, beta), t(-math.log(0.75)))
    assert_close(dpo(H, L, beta, 0.1), t(-0.9 * math.log(0.75) - 0.1 * math.log(0.25)))
    assert_close(robust_dpo(H, L, beta, 0.1), t((-0.9 * math.log(0.75) + 0.1 * math.log(0.25)) / 0.8))
    assert_close(exo(H, L, beta, 0.25), t(0))
    assert_close(exo(H, L, beta, 0.5 - 1e-9), t(0.75 * math.log(1.5) + 0.25 * math.log(0.5)), atol=1e-8, rtol=0)
    assert_close(ipo(H, L, 0.1), t(4))
    assert_close(slic(H, L, 3.5), t(0.5))
    assert_close(slic(H, L, 1.0), t(0))
    assert_close(simpo(H, L, 2 * beta, QUARTER), t(-math.log(0.75)))
    assert_close(sppo(t(5), t(-3), 0.1), t(0 + 4))
    assert_close(nca(t(QUARTER), t(-QUARTER), 1.0), t(-math.log(0.75) - 0.5 * (math.log(0.25) + math.log(0.75))))


def test_aot_by_hand() -> None:
    assert_close(aot(H, L, QUARTER / 3), t(-math.log(0.75)))
    assert_close(of_same_rank(t(5, -1, 2), t(30, 10, 20)), t(30, 10, 20))
    assert_close(of_same_rank(t(5, -1, 2), t(10, 20, 30)), t(30, 10, 20))
    h, l = t(4, 1), t(0, 3)  # noqa: E741
    assert_close(by_side(h, l, t(7, 7)), (t(3, 0), t(1, 4)))
    assert_close(by_margin(h, l, t(1, 2)), (t(1, 2), t(3, 2)))  # margins 5 and 0, against 2 and 1


def test_apo_by_hand() -> None:
    h, l = t(QUARTER), t(-QUARTER)  # noqa: E741
    assert_close(apo_zero(h, l, 1.0), t(0.25 + 0.25))
    assert_close(apo_down(h, l, 1.0), t(0.75 + 1 - 0.9))


def test_orpo_by_hand() -> None:
    h, l = t(math.log(0.75)), t(math.log(0.5))  # odds 3 and 1  # noqa: E741
    assert_close(log_odds(h), t(QUARTER))
    assert_close(orpo(h, l, 0.5), t(-0.5 * math.log(0.75)))


@pytest.mark.parametrize("m", [0.0, -1e-12, -1e-3, -0.6931, -0.7, -80.0, -1e4])
def test_log_odds_and_their_slope_are_finite_everywhere(m: float) -> None:
    moving = torch.tensor([m], requires_grad=True)
    log_odds(moving).sum().backward()
    assert bool(log_odds(moving).isfinite().all())
    assert moving.grad is not None
    assert bool(moving.grad.isfinite().all())


def test_unpaired_losses_by_hand() -> None:
    r, label, shift = t(1 + QUARTER, 1 + QUARTER), t(1, -1), t(1, 1)
    assert_close(kto(r, label, shift, 1.0, 2.0, 4.0), t(2 * 0.25, 4 * 0.75))
    assert_close(bco(r, label, shift, 1.0), t(-math.log(0.75), -math.log(0.25)))


def test_reward_losses_by_hand() -> None:
    assert_close(bradley_terry(t(QUARTER + 0.5), t(0), 0.5), t(-math.log(0.75)))
    assert_close(centring(t(3), t(-1)), t(4))


def test_comparisons_are_all_pairs_of_an_item_without_ties() -> None:
    rank, item = torch.tensor([2, 0, 0, 1, 1, 0]), torch.tensor([5, 5, 8, 5, 8, 8])
    won, lost = comparisons(rank, item)
    assert sorted(zip(won.tolist(), lost.tolist(), strict=True)) == [(1, 0), (1, 3), (2, 4), (3, 0), (5, 4)]


def test_the_bias_brings_demonstrations_to_0() -> None:
    score = t(3, 5, 1)
    assert float((score + demonstration_bias(score)).mean()) == 0
    with pytest.raises(ValueError, match="finite scores of at least one"):
        demonstration_bias(torch.empty(0))
