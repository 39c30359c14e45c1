"""Samples of the next round, drawn with the weights at the start of this one: asynchronous rollouts, one round ahead.

Where the sampler computes elsewhere, the next round is sampled while this one is trained; else at once, which gives the
same samples and saves no time. What was drawn is in the checkpoint, so a resumed run has the same samples.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posttrain.measure.phases import phase
from posttrain.rollout import Rollout
from posttrain.train.step import Batch


class Drawn(NamedTuple):
    """The samples of a round with their rewards, and the metrics of these."""

    batch: Batch
    metrics: dict[str, float]


class Ahead:
    """The round after the present one: in progress, or drawn."""

    def __init__(self, begin: Callable[[int], Any], finish: Callable[[int, Any], Drawn], *, background: bool) -> None:
        """`begin` chooses the prompts of a round: a tuple with the function `sample`; `finish` scores its samples.

        In the background only `sample` runs.
        """
        self._begin, self._finish = begin, finish
        self._pool = ThreadPoolExecutor(1, "ahead") if background else None
        self._open: tuple[int, Any] | None = None
        self._drawn: tuple[int, Drawn] | None = None

    def begin(self, number: int) -> None:
        """Begin to sample a round with the weights that the sampler has."""
        attempt = self._begin(number)
        if self._pool is not None:
            attempt = attempt._replace(sample=_Result(self._pool.submit(attempt.sample)))
        self._open = number, attempt
        if self._pool is None:
            self.finish()

    def finish(self) -> None:
        """Wait for the samples and score them; the sampler must still have their weights, for groups to be replaced."""
        if self._open is not None:
            number, attempt = self._open
            self._open, self._drawn = None, (number, self._finish(number, attempt))

    def take(self, number: int) -> Drawn:
        """Return the samples of a round."""
        self.finish()
        if self._drawn is None or self._drawn[0] != number:
            raise RuntimeError(f"round {number} was not sampled ahead")
        drawn, self._drawn = self._drawn[1], None
        return drawn

    def tensors(self) -> dict[str, Tensor]:
        """Return the round that is drawn, for a checkpoint; waits for it."""
        self.finish()
        if self._drawn is None:
            return {}
        number, drawn = self._drawn
        metrics = {f"metrics.{name}": torch.tensor(value, dtype=torch.float64) for name, value in drawn.metrics.items()}
        batch = {f"batch.{name}": part for name, part in drawn.batch.tensors().items()}
        return {"number": torch.tensor(number), **metrics, **batch}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        self._open = self._drawn = None
        if tensors:
            metrics = {name[8:]: float(part) for name, part in tensors.items() if name.startswith("metrics.")}
            batch = Batch.from_tensors({name[6:]: part for name, part in tensors.items() if name.startswith("batch.")})
            self._drawn = int(tensors["number"]), Drawn(batch, metrics)


class _Result:
    """Waits for the samples of another thread."""

    def __init__(self, future: Future[list[Rollout]]) -> None:
        self._future = future

    @phase("generate")
    def __call__(self) -> list[Rollout]:
        return self._future.result()
