"""Warn if a run cannot learn, and end it after some patience: rewards without signal, or collapsed samples."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from posttrain.algorithms.objective import parts_of
from posttrain.errors import TrainingError
from posttrain.rewards.reward import WeightedReward, weights
from posttrain.rewards.scorable import check_scorable, say_unread
from posttrain.rollout import Rollout
from posttrain.train.step import Batch

FIRST_COMPLETIONS = 64
"""At least one of this many first completions must have an answer that can be parsed."""
PARSED = -1
"""The value of the count of unparsed completions after one was parsed."""
ROUNDS = 5
"""Consecutive rounds with the same problem before a warning."""
PATIENCE = 10
"""Default number of consecutive rounds with the same problem that end a run."""
MAX_ZERO_VARIANCE = 0.9
"""The fraction of groups without reward variance above which a warning is printed at the end of a run."""
LEAST_ENTROPY = 1e-3
"""Nats per token below which a policy's samples hardly differ."""
FIXES = {
    "agree": "Change the reward, raise rollout.sampling.temperature or rollout.group_size, or use other prompts",
    "truncated": "Raise rollout.sampling.max_tokens, or train on shorter demonstrations first",
    "entropy": "Lower optimizer.lr, raise kl.beta, entropy or rollout.sampling.temperature",
}
"""Problem -> the settings that can fix it."""


def has_zero_variance(group: Batch, column: str = "reward") -> bool:
    """Tell whether a group's rewards are all equal, so that its advantages are 0.

    If the advantage compares each part of the reward separately, all parts must be equal.
    """
    parts = [part_G for part_G, weight in parts_of(group.columns.rows).values() if weight]
    return all(bool((part_G == part_G[0]).all()) for part_G in parts or [group.columns.rows[column]])


class RewardMonitor:
    """Counts over the rounds of one run. Checkpoints store them."""

    def __init__(
        self, name: str, terms: Mapping[str, WeightedReward], *, compares: bool, patience: int | None = PATIENCE
    ) -> None:
        """`compares`: whether a group of equal rewards has no gradient. `patience`: None never ends the run."""
        self._name, self._terms, self._compares, self._patience = name, terms, compares, patience
        self.raises = True
        """True if the end of patience is an error; else it is a warning, and `ended` becomes true."""
        self.ended = False
        self._unparsed = 0
        self._in_a_row = dict.fromkeys(FIXES, 0)
        self._groups = 0
        self._zero_variance = 0
        self._reward = 0.0

    def completions(self, rollouts: Sequence[Rollout]) -> None:
        """Stop the run if a reward could not parse any of its first completions.

        Print a line once if it failed on many.
        """
        if self._unparsed >= FIRST_COMPLETIONS or self._unparsed == PARSED:
            return
        counted = weights(self._terms)
        if all(any(rollout.scores[name].status != "unparseable" for rollout in rollouts) for name in counted):
            self._unparsed = PARSED
            say_unread(self._terms, rollouts, self._name)
            return
        self._unparsed += len(rollouts)
        if self._unparsed >= FIRST_COMPLETIONS:
            check_scorable(self._terms, rollouts, self._name, self._unparsed)

    def round(self, groups: Sequence[Batch]) -> None:
        """Check the groups of a round. Raise if the same problem lasts longer than the run's patience."""
        rewards = [group.columns.rows["reward"] for group in groups]
        zero_variance = [has_zero_variance(group) for group in groups]
        self._groups += len(groups)
        self._zero_variance += sum(zero_variance)
        self._reward += sum(float(reward_G.mean()) for reward_G in rewards)
        solved = all(bool((group.columns.rows["outcome"] >= 1).all()) for group in groups)
        logp = torch.cat([group.columns.tokens["old_logp"] for group in groups])
        problems = {
            "agree": self._compares and all(zero_variance),
            "truncated": all(bool(group.columns.rows["truncated"].all()) for group in groups),
            "entropy": -float(logp.mean()) < LEAST_ENTROPY,
        }
        for problem, occurs in problems.items():
            self._in_a_row[problem] = self._in_a_row[problem] + 1 if occurs and not solved else 0
            count = self._in_a_row[problem]
            if self._patience is not None and count >= self._patience:
                what = f"{self._said(problem, count)}. The run ends, because patience = {self._patience}"
                if self.raises:
                    raise TrainingError(what=what, where=self._name, fix=FIXES[problem])
                if not self.ended:
                    self._warn(what, FIXES[problem])
                self.ended = True
            if count == ROUNDS:
                self._warn(self._said(problem, count), FIXES[problem])

    def close(self) -> None:
        """Warn at the end of the run if hardly any group had a gradient."""
        fraction = self._zero_variance / max(self._groups, 1)
        if self._compares and fraction >= MAX_ZERO_VARIANCE:
            what = (
                f"in {fraction:.0%} of all {self._groups} groups, all rewards were equal (groups_with_signal), so they "
            )
            self._warn(f"{what}give no gradient (mean reward {self._mean():.3g})", FIXES["agree"])

    def tensor(self) -> Tensor:
        """Return the counts as a tensor, for a checkpoint."""
        counts = [self._unparsed, self._groups, self._zero_variance, self._reward, *self._in_a_row.values()]
        return torch.tensor(counts, dtype=torch.float64)

    def load(self, saved: Tensor) -> None:
        """Restore the counts from `tensor`."""
        unparsed, groups, zero_variance, self._reward, *in_a_row = saved.tolist()
        self._unparsed, self._groups, self._zero_variance = int(unparsed), int(groups), int(zero_variance)
        self._in_a_row = dict(zip(FIXES, map(int, in_a_row), strict=True))

    def _said(self, problem: str, rounds: int) -> str:
        """Return a problem as text."""
        rest = {
            "agree": f"the rewards of every group are equal, so they give no gradient (mean reward {self._mean():.3g})",
            "truncated": "every completion is truncated",
            "entropy": f"the samples of the policy hardly differ (entropy below {LEAST_ENTROPY:g} nats per token)",
        }
        return f"in the last {rounds} rounds {rest[problem]}"

    def _mean(self) -> float:
        return self._reward / max(self._groups, 1)

    def _warn(self, what: str, fix: str) -> None:
        print(f"{self._name}: {what}. {fix}", file=sys.stderr)
