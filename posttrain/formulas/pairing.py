"""Which samples become training data: pairs for a preference row, or the best for likelihood. Row numbers out."""

from __future__ import annotations

import torch
from torch import Tensor


def best_against_worst(reward_B: Tensor, group_B: Tensor, gap: float = 0.0) -> tuple[Tensor, Tensor]:
    """Highest and lowest reward of each group whose rewards differ by more than `gap` (online DPO, Guo 2024)."""
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        if float(reward.max() - reward.min()) > gap:
            chosen.append(rows[reward.argmax()])
            rejected.append(rows[reward.argmin()])
    return _rows(chosen), _rows(rejected)


def all_against_all(reward_B: Tensor, group_B: Tensor, threshold: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Every pair of a group with sigmoid((r_i - r_j) / scale) above a threshold >= 0.5 (RS-DPO, Khaki 2024)."""
    if not 0.5 <= threshold < 1:
        raise ValueError(f"threshold = {threshold}: below 0.5 a pair would be taken both ways round")
    chosen, rejected = [], []
    for rows in groups(group_B):
        reward = reward_B[rows]
        won, lost = (torch.sigmoid((reward[:, None] - reward[None, :]) / scale) > threshold).nonzero(as_tuple=True)
        chosen.append(rows[won])
        rejected.append(rows[lost])
    return _joined(chosen), _joined(rejected)


def rejection_sampled(
    reward_B: Tensor, group_B: Tensor, keep: int, beta: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Pairs among `keep` samples of each group, accepted with probability exp((r - r_max) / beta) (RSO, Liu 2023).

    r_max is the highest reward not yet accepted; accepted samples are paired two by two at random, ties left out.
    """
    chosen, rejected = [], []
    for rows in groups(group_B):
        taken = _accepted(reward_B[rows], min(keep, rows.numel()), beta, generator)
        shuffled = taken[torch.randperm(taken.numel(), generator=generator)]
        for one, other in shuffled[: taken.numel() // 2 * 2].view(-1, 2).tolist():
            first, second = rows[one], rows[other]
            if reward_B[first] == reward_B[second]:
                continue
            chosen.append(first if reward_B[first] > reward_B[second] else second)
            rejected.append(second if reward_B[first] > reward_B[second] else first)
    return _rows(chosen), _rows(rejected)


def best_of_group(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """The highest reward of each group, the first of equals (RAFT, Dong 2023)."""
    return _rows([rows[reward_B[rows].argmax()] for rows in groups(group_B)])


def above(reward_B: Tensor, threshold: float) -> Tensor:
    """Every sample whose reward reaches the threshold (ReST-EM, Singh 2023)."""
    return (reward_B >= threshold).nonzero().squeeze(1)


def rising_threshold(reward_B: Tensor, iteration: int, quantiles: tuple[float, ...]) -> float:
    """The quantile that iteration n filters at; quantiles must not fall (ReST, Gulcehre 2023)."""
    if list(quantiles) != sorted(quantiles) or not quantiles:
        raise ValueError(f"quantiles = {quantiles}: ReST filters harder with each iteration, so they must not fall")
    return float(reward_B.double().quantile(quantiles[min(iteration, len(quantiles) - 1)]))


def groups(group_B: Tensor) -> list[Tensor]:
    """The row numbers of each group, groups by their first row."""
    first: dict[float, list[int]] = {}
    for row, group in enumerate(group_B.tolist()):
        first.setdefault(group, []).append(row)
    return [torch.tensor(rows, device=group_B.device) for rows in first.values()]


def _accepted(reward_G: Tensor, keep: int, beta: float, generator: torch.Generator) -> Tensor:
    left = list(range(reward_G.numel()))
    taken: list[int] = []
    while len(taken) < keep:
        highest = max(float(reward_G[i]) for i in left)
        for i in list(left):
            draw = float(torch.rand((), generator=generator))
            if len(taken) < keep and draw < torch.exp((reward_G[i] - highest) / beta):
                taken.append(i)
                left.remove(i)
    return torch.tensor(taken)


def _rows(numbers: list[Tensor]) -> Tensor:
    return torch.stack(numbers) if numbers else torch.empty(0, dtype=torch.long)


def _joined(numbers: list[Tensor]) -> Tensor:
    return torch.cat(numbers) if numbers else torch.empty(0, dtype=torch.long)
