"""Pass@k training: a sample's advantage over the sets of k samples that contain it."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, group_sums, per_row
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.settings.choices import Options


class PassOptions(Options):
    """The size of the sets, and the reward at which a sample passes."""

    k: int = Field(
        4,
        ge=1,
        description="samples in a set, which passes if one of them passes; smaller groups use all their samples",
    )
    threshold: float = Field(0.5, description="minimum reward to pass")


def pass_at_k(reward_B: Tensor, group_B: Tensor, k: int, threshold: float = 0.5) -> Tensor:
    """(pass rate of the sets with sample i - pass rate of all sets) / spread of the sets in the group (Chen 2025).

    f of n samples fail. All sets with a right sample pass. Of the sets with a given wrong sample, C(f - 1, k - 1) / C(n
    - 1, k - 1) fail; of all sets, C(f, k) / C(n, k). The result is 0 if all sets are alike.
    """
    right_B = (reward_B >= threshold).to(reward_B.dtype)
    passed_B, count_B = group_sums(right_B, group_B)
    failed_B = count_B - passed_B
    mean_B = 1 - _without(failed_B, count_B, k)
    own_B = torch.where(right_B > 0, torch.ones_like(reward_B), 1 - _without(failed_B - 1, count_B - 1, k - 1))
    spread_B = (mean_B * (1 - mean_B)).sqrt()
    flat_B = spread_B == 0
    return torch.where(flat_B, torch.zeros_like(reward_B), (own_B - mean_B) / spread_B.masked_fill(flat_B, 1.0))


def _without(failed_B: Tensor, count_B: Tensor, k: int) -> Tensor:
    """C(failed, k) / C(count, k), k at most count: the share of sets without a right sample."""
    steps_Bk = torch.arange(k, dtype=failed_B.dtype, device=failed_B.device).expand(len(failed_B), k)
    left_Bk, of_Bk = failed_B[:, None] - steps_Bk, count_B[:, None] - steps_Bk
    ratios_Bk = torch.where(of_Bk > 0, left_Bk.clamp(min=0) / of_Bk.clamp(min=1), torch.ones_like(of_Bk))
    return ratios_Bk.prod(dim=1)


ADVANTAGES = {
    "pass_at_k": Advantage(
        PassOptions,
        per_row(lambda rewards, k: pass_at_k(rewards.reward_B, rewards.step.rows["group"], k.k, k.threshold)),
        "(pass rate of the sets of k with the sample - that of all sets) / their spread",
        grouped=True,
        nonnegative=True,  # neither a KL nor a length is subtracted from what is compared with the threshold
        smallest_group=lambda options: options.k + 1,
    )
}
ROWS = {
    "pass_at_k": AlgorithmRow(
        "Chen 2025, arXiv:2508.10751",
        "-mean_tokens min(r A, clip(r, 0.8, 1.28) A), A = (pass rate of the sets with the sample - of all) / spread",
        {"advantage": "pass_at_k", "aggregation": "token_mean", "surrogate": {"high": 0.28}},
    )
}
