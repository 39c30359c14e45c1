"""Remove rollouts that a reward could not score from the batch, and end a run with too many such rollouts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from posttrain.errors import RewardError
from posttrain.rewards.score import RewardSum
from posttrain.rollout import FAILED, Rollout, Score

if TYPE_CHECKING:
    from torch import Tensor

MAX_FAILED = 0.1
"""The default largest fraction of rollouts that a reward may fail to score."""


def _some_are_scored(share: float) -> float:
    if share >= 1:
        raise ValueError("at 1, every completion may fail, which leaves nothing to train on. Use a number below 1")
    return share


MaxFailed = Annotated[
    float,
    Field(ge=0, description="largest fraction (below 1) of recent completions that a reward may fail to score"),
    AfterValidator(_some_are_scored),
]
"""The setting `max_failed`."""
OnFailures = Annotated[
    Literal["end", "wait"],
    Field(
        description="action if a server or sandbox is down and more than max_failed completions have no score. "
        "end: end the run. wait: ask again until it is back"
    ),
]
"""The setting `on_failures`."""
MEMORY = 256
"""The approximate number of recent rollouts that count."""
LEAST = 32
"""With fewer rollouts, a run ends only if all of them failed."""


T = TypeVar("T")


def wait_above(on_failures: OnFailures, max_failed: float) -> float | None:
    """Return the share of unscored rollouts above which a run waits; None if it does not wait."""
    return max_failed if on_failures == "wait" else None


@dataclass
class Recent:
    """Failure counts over about the last `MEMORY` rollouts."""

    failed: float = 0.0
    total: float = 0.0

    def add(self, lost: int, count: int) -> Recent:
        """Count more rollouts. Older rollouts fade."""
        fade = min(1.0, max(MEMORY - count, 0) / self.total) if self.total else 1.0
        self.failed, self.total = self.failed * fade + lost, self.total * fade + count
        return self


def _example(rollout: Rollout, score: Score) -> str:
    reason = f"{score.status}: {score.reason}" if score.reason else score.status
    return f"({reason}; prompt {rollout.prompt.id}, completion {rollout.text[:80]!r})"


class FailureLimit:
    """Removes rollouts that could not be scored, and ends a run if their fraction exceeds the limit.

    Rewards that are only measured (weight 0, metrics) have separate counts, over the kept rollouts.
    """

    def __init__(self, reward: RewardSum, most: float, where: str) -> None:
        self._reward, self._most, self._where = reward, most, where
        self._counts = {name: Recent() for name in ("", *reward.only_measured)}

    @property
    def failed(self) -> float:
        """The approximate number of recent rollouts that could not be scored."""
        return self._counts[""].failed

    @property
    def total(self) -> float:
        """The approximate number of recent rollouts."""
        return self._counts[""].total

    def check(self, rollouts: Sequence[Rollout]) -> list[int]:
        """Return the indices of the rollouts that every part could score."""
        failures = [self._reward.failure(scored) for scored in rollouts]
        scorable = [place for place, failed in enumerate(failures) if not failed]
        lost, count = len(rollouts) - len(scorable), len(rollouts)
        recent = self._counts[""].add(lost, count)
        first = next(((scored, *failed) for scored, failed in zip(rollouts, failures, strict=True) if failed), None)
        if first is not None:
            rollout, name, score = first
            source = "because its task failed" if rollout.failed else f"in reward '{name}'"
            what = (
                f"{lost} of {count} completions could not be scored; the first failed {source} "
                f"{_example(rollout, score)}"
            )
            nothing = "Nothing is left to train on or to measure" if not scorable else ""
            self._judge(recent, what, f"Fix the {'task' if rollout.failed else 'reward'}", nothing, "")
        for name in self._reward.only_measured:
            self._measured(name, [rollouts[place] for place in scorable])
        return scorable

    def _measured(self, name: str, rollouts: Sequence[Rollout]) -> None:
        """Count the failures of a reward that is only measured."""
        failed = [rollout for rollout in rollouts if rollout.scores[name].status in FAILED]
        recent = self._counts[name].add(len(failed), len(rollouts))
        if failed:
            what = f"{len(failed)} of {len(rollouts)} completions have no value of metric '{name}', the first "
            what += _example(failed[0], failed[0].scores[name])
            nothing = "It measured nothing" if len(failed) == len(rollouts) else ""
            self._judge(recent, what, f"Fix metric '{name}'", nothing, " of its mean")

    def _judge(self, recent: Recent, what: str, fix: str, nothing: str, means: str) -> None:
        """Print what failed. End the run if nothing is left or too much has failed."""
        if nothing:
            raise RewardError(what=f"{what}. {nothing}, whatever max_failed is", where=self._where, fix=fix)
        if recent.total >= LEAST and recent.failed > self._most * recent.total:
            what += f". {recent.failed / recent.total:.0%} of the last {recent.total:.0f} exceed max_failed = "
            fix += ", or raise max_failed. A failed score never counts as 0 (docs/rewards.md)"
            raise RewardError(what=f"{what}{self._most:g}", where=self._where, fix=fix)
        print(f"{self._where}: {what}. They are left out{means}", file=sys.stderr)

    def complete(self, prompts: Sequence[T], rollouts: Sequence[Rollout]) -> tuple[list[T], list[Rollout]]:
        """Return the prompts whose rollouts were all scored, and these rollouts."""
        size, scored = len(rollouts) // len(prompts), set(self.check(rollouts))
        whole = [i for i in range(len(prompts)) if scored.issuperset(range(i * size, (i + 1) * size))]
        return [prompts[i] for i in whole], [rollout for i in whole for rollout in rollouts[i * size : (i + 1) * size]]

    def tensor(self) -> Tensor:
        """Return the counts as a tensor, for a checkpoint."""
        import torch

        return torch.tensor([(one.failed, one.total) for one in self._counts.values()], dtype=torch.float64)

    def load(self, saved: Tensor) -> None:
        """Restore the counts from `tensor`."""
        for recent, (failed, total) in zip(self._counts.values(), saved.tolist(), strict=True):
            recent.failed, recent.total = failed, total
