"""Numbers by hand where mutations of the code had survived: combinations that the random cases hardly meet."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.policy.pass_at_k import pass_at_k
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.formulas.ragged import Ragged
from posttrain.losses import policy_loss


def test_opo_subtracts_the_kl_of_the_reward_before_it_weighs_by_lengths() -> None:
    """Rewards 1 and 0, lengths 1 and 3, beta 0.5, k1 of 0.2 a token: penalised 0.9 and -0.3, baseline 0."""
    kl = {"type": "reward_sequence", "estimator": "k1", "beta": 0.5}
    objective = PolicyObjective(POLICY_ROWS["opo"].settings(kl=kl), 8)
    lengths = torch.tensor([1, 3])
    old = torch.full((4,), -1.0, dtype=torch.float64)
    step = Ragged(
        lengths,
        rows={
            "reward": torch.tensor([1.0, 0.0], dtype=torch.float64),
            "group": torch.zeros(2, dtype=torch.long),
            "truncated": torch.zeros(2, dtype=torch.bool),
        },
        tokens={"old_logp": old, "ref_logp": old - 0.2},
    )
    advantage = objective.prepare(step, objective.initial_state()).step.tokens["advantage"]
    baseline = (1 * 0.9 + 3 * -0.3) / 4
    assert advantage.tolist() == pytest.approx([0.9 - baseline, *3 * [-0.3 - baseline]])


def test_a_reward_exactly_on_the_threshold_passes() -> None:
    reward, group = torch.tensor([0.5, 0, 0, 0], dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    on, above = pass_at_k(reward, group, 2, 0.5), pass_at_k(reward * 2, group, 2, 0.5)
    assert torch.equal(on, above) and float(on[0]) > 0
    assert not pass_at_k(reward, group, 2, math.nextafter(0.5, 1.0)).any(), "nobody passes: all sets are alike"


@pytest.mark.parametrize(("ratio", "advantage", "share"), [(2.9, -1.0, 0.0), (3.1, -1.0, 1.0), (3.1, 1.0, 1.0)])
def test_beyond_its_floor_a_token_of_dual_clip_counts_as_clipped(ratio: float, advantage: float, share: float) -> None:
    """A bad token keeps its gradient up to floor = 3, though it is outside of the clip on that side."""
    old = torch.full((1, 1), -2.0, dtype=torch.float64)
    logp = (old + math.log(ratio)).requires_grad_()
    loss, metrics = policy_loss("dual_clip", logp, old, torch.tensor([advantage]), torch.ones(1, 1, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(loss, logp)
    assert metrics["clip_fraction"] == share
    assert (float(gradient) == 0.0) == bool(share)
