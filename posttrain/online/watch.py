"""Warns when a run cannot learn: no completion can be parsed, or the rewards of every group are equal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from posttrain.rewards.reward import Term, check_readable, weights
from posttrain.rollout import Rollout

PATIENCE = 64
"""Of the first completions of a run, at least one must have an answer that can be parsed."""
ROUNDS = 5
MOST = 0.9
"""The share of groups without a gradient in a whole run that is worth a warning."""


def has_zero_variance(reward_G: Tensor) -> bool:
    """Whether a group's rewards are all the same, so that its advantages are 0."""
    return bool((reward_G == reward_G[0]).all())


class Watch:
    """Counts over the rounds of one run; the counts are kept in its checkpoints."""

    def __init__(self, name: str, terms: Mapping[str, Term], *, compares: bool) -> None:
        """`compares`: whether a group whose rewards agree has no gradient."""
        self._name, self._terms, self._compares = name, terms, compares
        self._unread = 0
        self._in_a_row = 0
        self._groups = 0
        self._agreeing = 0
        self._reward = 0.0

    def completions(self, rollouts: Sequence[Rollout]) -> None:
        """Stop the run if no reward could read one of its first completions."""
        if self._unread >= PATIENCE or self._unread < 0:
            return
        counted = weights(self._terms)
        if all(any(one.scores[name].status != "unparseable" for one in rollouts) for name in counted):
            self._unread = -1
            return
        self._unread += len(rollouts)
        if self._unread >= PATIENCE:
            check_readable(self._terms, rollouts, self._name, self._unread)

    def round(self, rewards: Sequence[Tensor]) -> None:
        """Count the groups whose rewards agree."""
        found = [has_zero_variance(reward_G) for reward_G in rewards]
        self._groups += len(found)
        self._agreeing += sum(found)
        self._reward += sum(float(reward_G.mean()) for reward_G in rewards)
        self._in_a_row = self._in_a_row + 1 if all(found) else 0
        if self._compares and self._in_a_row == ROUNDS:
            self._tell(f"in the last {ROUNDS} rounds the rewards of every group are equal")

    def close(self) -> None:
        """Say at the end of the run if hardly any group had a gradient."""
        share = self._agreeing / max(self._groups, 1)
        if self._compares and share >= MOST:
            self._tell(f"in {share:.0%} of all {self._groups} groups (groups_agreeing) the rewards were equal")

    def tensor(self) -> Tensor:
        """The counts, for a checkpoint."""
        counts = [self._unread, self._in_a_row, self._groups, self._agreeing, self._reward]
        return torch.tensor(counts, dtype=torch.float64)

    def load(self, kept: Tensor) -> None:
        """Take up the counts."""
        *counts, self._reward = kept.tolist()
        self._unread, self._in_a_row, self._groups, self._agreeing = map(int, counts)

    def _tell(self, what: str) -> None:
        print(
            f"{self._name}: {what}, so they give no gradient (mean reward {self._reward / self._groups:.3g}). Change "
            "the reward, raise rollout.sampling.temperature or rollout.group_size, or use easier or harder prompts",
            file=sys.stderr,
        )
