"""Choose the prompts of a round: all prompts in passes, or mostly prompts that the policy sometimes solves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from posttrain.settings.params import Params

LEAST_WEIGHT = 0.01
"""Smallest weight, as a share of the largest (at p = 1/2). Prompts that always or never pass come back at times."""


class PassRates(Params):
    """Prompts are drawn by the policy's pass rate on them in this run."""

    pass_score: float = Field(1.0, description="minimum outcome reward to pass")
    memory: float = Field(
        0.8, ge=0, lt=1, description="share of a prompt's earlier samples that still counts after a new draw"
    )


class PromptOrder:
    """Chooses prompts by index. Each pass contains all prompts in an order that depends on the seed."""

    def __init__(self, prompts: int, seed: int) -> None:
        self._prompts, self._seed = prompts, seed

    def places(self, drawn: int, count: int) -> list[int]:
        """Return the indices of the next `count` prompts after the first `drawn` prompts."""
        places = []
        for number in range(drawn, drawn + count):
            lap, place = divmod(number, self._prompts)
            places.append(int(torch.randperm(self._prompts, generator=self._generator(lap))[place]))
        return places

    def learn(self, place: int, outcomes: Tensor) -> None:
        """Record the rewards of a group of samples."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""

    def _generator(self, lap: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed * 7_919 + lap)


class ByPassRate(PromptOrder):
    """Draws prompts with weight p (1 - p), p = (passed + 1) / (samples + 2), which is largest for unsampled prompts.

    The variance of a group's rewards is p (1 - p). Without variance a group has no gradient.
    """

    def __init__(self, prompts: int, seed: int, rates: PassRates) -> None:
        super().__init__(prompts, seed)
        self._rates, self._passed, self._samples = rates, torch.zeros(prompts), torch.zeros(prompts)

    def places(self, drawn: int, count: int) -> list[int]:
        """Return `count` indices. An index repeats only after all prompts have been drawn."""
        places: list[int] = []
        while len(places) < count:
            some = min(count - len(places), self._prompts)
            generator = self._generator(drawn + len(places))
            places += torch.multinomial(self.weights(), some, generator=generator).tolist()
        return places

    def weights(self) -> Tensor:
        """Return each prompt's weight in a draw."""
        rate = (self._passed + 1) / (self._samples + 2)
        return (4 * rate * (1 - rate)).clamp(min=LEAST_WEIGHT)

    def learn(self, place: int, outcomes: Tensor) -> None:
        """Record how many of a group passed. Earlier counts are reduced, because the policy has changed."""
        passed = float((outcomes >= self._rates.pass_score).sum())
        for total, new in ((self._passed, passed), (self._samples, float(len(outcomes)))):
            total[place] = self._rates.memory * total[place] + new

    def state_dict(self) -> dict[str, Tensor]:
        """Return the recorded counts."""
        return {"passed": self._passed, "samples": self._samples}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._passed, self._samples = tensors["passed"].clone(), tensors["samples"].clone()


def prompt_order(prompts: Sequence[object], seed: int, rates: PassRates | None) -> PromptOrder:
    """Return the order that the settings choose."""
    return PromptOrder(len(prompts), seed) if rates is None else ByPassRate(len(prompts), seed, rates)
