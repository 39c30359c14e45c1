"""Warns when a run cannot learn: no completion can be parsed, or the rewards of every group are equal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from posttrain.rewards.reward import Term, check_readable, weights
from posttrain.rollout import Rollout

FIRST_COMPLETIONS = 64
"""At least one of so many first completions must have an answer that can be parsed."""
PARSED = -1
"""The count of unparsed completions once one was parsed."""
ROUNDS = 5
"""Rounds in a row without any reward variance that print a warning."""
MAX_ZERO_VARIANCE = 0.9
"""Fraction of a run's groups without reward variance that prints a warning at its end."""


def has_zero_variance(reward_G: Tensor) -> bool:
    """Whether a group's rewards are all the same, so that its advantages are 0."""
    return bool((reward_G == reward_G[0]).all())


class RewardMonitor:
    """Counts over the rounds of one run, saved in its checkpoints."""

    def __init__(self, name: str, terms: Mapping[str, Term], *, compares: bool) -> None:
        """`compares`: whether a group of equal rewards has no gradient."""
        self._name, self._terms, self._compares = name, terms, compares
        self._unparsed = 0
        self._in_a_row = 0
        self._groups = 0
        self._zero_variance = 0
        self._reward = 0.0

    def completions(self, rollouts: Sequence[Rollout]) -> None:
        """Stop the run if a reward could parse none of its first completions."""
        if self._unparsed >= FIRST_COMPLETIONS or self._unparsed == PARSED:
            return
        counted = weights(self._terms)
        if all(any(one.scores[name].status != "unparseable" for one in rollouts) for name in counted):
            self._unparsed = PARSED
            return
        self._unparsed += len(rollouts)
        if self._unparsed >= FIRST_COMPLETIONS:
            check_readable(self._terms, rollouts, self._name, self._unparsed)

    def round(self, rewards: Sequence[Tensor]) -> None:
        """Count the groups whose rewards are all equal."""
        zero_variance = [has_zero_variance(reward_G) for reward_G in rewards]
        self._groups += len(zero_variance)
        self._zero_variance += sum(zero_variance)
        self._reward += sum(float(reward_G.mean()) for reward_G in rewards)
        self._in_a_row = self._in_a_row + 1 if all(zero_variance) else 0
        if self._compares and self._in_a_row == ROUNDS:
            self._warn(f"in the last {ROUNDS} rounds the rewards of every group are equal")

    def close(self) -> None:
        """Warn at the end of the run if hardly any group had a gradient."""
        fraction = self._zero_variance / max(self._groups, 1)
        if self._compares and fraction >= MAX_ZERO_VARIANCE:
            self._warn(f"in {fraction:.0%} of all {self._groups} groups (groups_agreeing) the rewards were equal")

    def tensor(self) -> Tensor:
        """The counts as a tensor, for a checkpoint."""
        counts = [self._unparsed, self._in_a_row, self._groups, self._zero_variance, self._reward]
        return torch.tensor(counts, dtype=torch.float64)

    def load(self, saved: Tensor) -> None:
        """Restore the counts from `tensor`."""
        *counts, self._reward = saved.tolist()
        self._unparsed, self._in_a_row, self._groups, self._zero_variance = map(int, counts)

    def _warn(self, what: str) -> None:
        print(
            f"{self._name}: {what}, so they give no gradient (mean reward {self._reward / self._groups:.3g}). Change "
            "the reward, raise rollout.sampling.temperature or rollout.group_size, or use easier or harder prompts",
            file=sys.stderr,
        )
