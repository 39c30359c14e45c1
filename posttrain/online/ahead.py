"""Asynchronous rollouts: sample the next round with the weights from the start of the current round.

If the sampler uses other devices, the next round is sampled while this one is trained. Otherwise it is sampled first,
which gives the same samples but saves no time. Checkpoints store the samples, so a resumed run uses the same ones.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from posttrain.measure.phases import phase
from posttrain.online.collect import Draw
from posttrain.online.rounds import FreshRounds, Round
from posttrain.rollout import Rollout
from posttrain.train.batch_sources import prefixed, under


class RoundsAhead:
    """The next round, being sampled or complete."""

    def __init__(self, rounds: FreshRounds) -> None:
        self._rounds = rounds
        self._pool = ThreadPoolExecutor(1, "ahead") if rounds.sampler.background else None
        self._open: tuple[Draw, Future[list[Rollout]] | None] | None = None
        self._sampled: tuple[int, Round] | None = None

    def take(self, number: int, step: int) -> Round:
        """Return the samples of a round and start the next one."""
        if number == 0:
            self._rounds.sampler.sync(0)
            self._begin(0)
        self._finish()
        if self._sampled is None or self._sampled[0] != number:
            raise RuntimeError(f"round {number} was not sampled ahead")
        taken, self._sampled = self._sampled[1], None
        if number + 1 < self._rounds.params.rounds:
            if number:
                self._rounds.sampler.sync(step)
            self._begin(number + 1)
        return taken

    def state_dict(self) -> dict[str, Tensor]:
        """Wait for the next round, and return it and the counts for a checkpoint."""
        self._finish()
        ahead = {} if self._sampled is None else self._sampled[1].tensors()
        number = {} if self._sampled is None else {"number": torch.tensor(self._sampled[0])}
        return {**self._rounds.state_dict(), **prefixed(ahead={**number, **ahead})}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._rounds.load_state_dict(tensors)
        ahead, self._open = under(tensors, "ahead"), None
        self._sampled = (int(ahead["number"]), Round.from_tensors(ahead)) if ahead else None

    def _begin(self, number: int) -> None:
        """Start to sample a round with the sampler's present weights. Only the sampling runs in the background."""
        draw = self._rounds.begin(number)
        self._open = draw, None if self._pool is None else self._pool.submit(self._rounds.sampler.sample, draw)
        if self._pool is None:
            self._finish()

    def _finish(self) -> None:
        """Wait for the samples and score them. Replacement groups need the sampler to still have the same weights."""
        if self._open is not None:
            (draw, future), self._open = self._open, None
            self._sampled = draw.round, self._rounds.finish(draw, None if future is None else _result(future))


@phase("generate")
def _result(future: Future[list[Rollout]]) -> list[Rollout]:
    return future.result()
