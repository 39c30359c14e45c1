"""Rollouts that a reward could not score leave the batch; a run with too many of them ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from posttrain.errors import RewardError
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout

if TYPE_CHECKING:
    from torch import Tensor

MAX_FAILED = 0.1
"""Largest fraction of rollouts that a reward may fail to score, where params.yaml says nothing."""


def _some_are_scored(share: float) -> float:
    if share >= 1:
        raise ValueError("nothing would have to be scored, and then there is nothing to learn. Use a number below 1")
    return share


MaxFailed = Annotated[
    float,
    Field(ge=0, description="largest fraction of recent completions that a reward may fail to score, below 1"),
    AfterValidator(_some_are_scored),
]
"""The setting `max_failed`."""
OnFailures = Annotated[
    Literal["end", "wait"],
    Field(
        description="what a run does when more completions than max_failed cannot be scored because a server or a "
        "sandbox is down (status infrastructure): end, or wait and ask again until it is back"
    ),
]
"""The setting `on_failures`."""
MEMORY = 256
"""About so many of the last rollouts count."""
LEAST = 32
"""With fewer rollouts a run ends only if all of them failed."""


T = TypeVar("T")


def wait_above(on_failures: OnFailures, max_failed: float) -> float | None:
    """Return the share of rollouts without a score at which a run waits; None: it does not."""
    return max_failed if on_failures == "wait" else None


class FailureLimit:
    """Takes out the rollouts that could not be scored, and ends a run where their fraction passes the limit."""

    def __init__(self, reward: RewardSum, most: float, where: str) -> None:
        self._reward, self._most, self._where = reward, most, where
        self.failed, self.total = 0.0, 0.0

    def check(self, rollouts: Sequence[Rollout]) -> list[int]:
        """Return the places of the rollouts that every part could score."""
        failures = [self._reward.failure(scored) for scored in rollouts]
        kept = [place for place, failed in enumerate(failures) if not failed]
        lost, count = len(rollouts) - len(kept), len(rollouts)
        fade = min(1.0, max(MEMORY - count, 0) / self.total) if self.total else 1.0
        self.failed, self.total = self.failed * fade + lost, self.total * fade + count
        first = next(((scored, *failed) for scored, failed in zip(rollouts, failures, strict=True) if failed), None)
        if first is None:
            return kept
        rollout, name, score = first
        source = "as its task failed" if rollout.failed else f"by reward '{name}'"
        reason = f"{score.status}: {score.reason}" if score.reason else score.status
        what = f"{lost} of {count} completions could not be scored, the first {source} ({reason}; prompt "
        what += f"{rollout.prompt.id}, completion {rollout.text[:80]!r})"
        fix = f"Fix the {'task' if rollout.failed else 'reward'}"
        if not kept:
            what += ". Nothing is left to learn from or to measure, whatever max_failed is"
            raise RewardError(what=what, where=self._where, fix=fix)
        if self.total >= LEAST and self.failed > self._most * self.total:
            what += f". {self.failed / self.total:.0%} of the last {self.total:.0f} are more than max_failed = "
            fix += ", or raise max_failed. A failed score never counts as 0 (docs/rewards.md)"
            raise RewardError(what=f"{what}{self._most:g}", where=self._where, fix=fix)
        print(f"{self._where}: {what}. They are left out", file=sys.stderr)
        return kept

    def complete(self, prompts: Sequence[T], rollouts: Sequence[Rollout]) -> tuple[list[T], list[Rollout]]:
        """Return the prompts all of whose rollouts were scored, and those rollouts."""
        size, kept = len(rollouts) // len(prompts), set(self.check(rollouts))
        whole = [i for i in range(len(prompts)) if kept.issuperset(range(i * size, (i + 1) * size))]
        return [prompts[i] for i in whole], [rollout for i in whole for rollout in rollouts[i * size : (i + 1) * size]]

    def tensor(self) -> Tensor:
        """Return the counts as a tensor, for a checkpoint."""
        import torch

        return torch.tensor([self.failed, self.total], dtype=torch.float64)

    def load(self, saved: Tensor) -> None:
        """Restore the counts from `tensor`."""
        self.failed, self.total = saved.tolist()
