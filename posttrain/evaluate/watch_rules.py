"""Judge evaluations during training: find the best, a worse newest evaluation, and over-optimisation.

Two evaluations are compared prompt by prompt. The newest is compared with the best of n earlier ones. Chance favours
the best, so the interval has level 1 - 0.05 / n (Bonferroni). A run has many evaluations, so two consecutive ones must
agree before posttrain reports over-optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.evaluate.intervals import Floats, interval

ALPHA = 0.05
IN_A_ROW = 2
"""Consecutive evaluations for an alarm. By chance, one of 20 is worse in 26 % of runs, two in a row in 3 %."""
DRAWS = 10_000
"""Resamples for the interval between two evaluations. Its level can be high."""


class Measured(NamedTuple):
    """The results of the current weights on the held-out rows. Larger is better."""

    true_P: Floats
    """The deciding quantity per row, e.g. the mean true reward of a prompt's samples; nan if unknown."""
    proxy_P: Floats
    """The quantity that is trained on; the same if there is no other."""
    figures: Mapping[str, float] = {}
    """More metrics of these weights."""


class Evaluation(NamedTuple):
    """The results of the weights before an optimizer step."""

    step: int
    true_P: Floats
    proxy_P: Floats
    figures: Mapping[str, float] = {}

    @property
    def true(self) -> float:
        """The mean true reward."""
        return float(np.nanmean(self.true_P))


class Change(NamedTuple):
    """A paired difference of two evaluations, with its interval over prompts."""

    mean: float
    low: float
    high: float

    def shown(self, sign: float = 1.0) -> str:
        """Return the change as text. `sign` -1: with the opposite sign, e.g. for a loss."""
        low, high = sorted((sign * self.low, sign * self.high))
        return f"{sign * self.mean:+.3f} [{low:+.3f}, {high:+.3f}]"


class Verdict(NamedTuple):
    """The newest evaluation compared with the best earlier evaluation."""

    best: Evaluation
    true: Change
    proxy: Change


class History:
    """The evaluations of a run and the conclusions from them."""

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.worse_in_a_row = self.over_optimised_in_a_row = 0
        self.over_optimised_at: int | None = None

    @property
    def best(self) -> Evaluation:
        """The evaluation with the highest mean true reward; the first if several are equal."""
        return max(self.evaluations, key=lambda evaluation: evaluation.true)

    def add(self, newest: Evaluation) -> Verdict | None:
        """Append an evaluation. Return the verdict on it if there are earlier evaluations."""
        earlier, best = len(self.evaluations), self.best if self.evaluations else None
        self.evaluations.append(newest)
        if best is None:
            return None
        level = 1 - ALPHA / earlier
        verdict = Verdict(best, change(best.true_P, newest.true_P, level), change(best.proxy_P, newest.proxy_P, level))
        worse = verdict.true.high < 0  # by an interval that excludes 0
        self.worse_in_a_row = self.worse_in_a_row + 1 if worse else 0
        self.over_optimised_in_a_row = self.over_optimised_in_a_row + 1 if worse and verdict.proxy.low > 0 else 0
        if self.over_optimised_in_a_row >= IN_A_ROW and self.over_optimised_at is None:
            self.over_optimised_at = newest.step
        return verdict

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything as tensors, for a checkpoint."""
        names = dict.fromkeys(name for evaluation in self.evaluations for name in evaluation.figures)
        values = {name: [evaluation.figures.get(name, math.nan) for evaluation in self.evaluations] for name in names}
        return {
            "steps": torch.tensor([evaluation.step for evaluation in self.evaluations]),
            "true": torch.tensor(np.array([evaluation.true_P for evaluation in self.evaluations])),
            "proxy": torch.tensor(np.array([evaluation.proxy_P for evaluation in self.evaluations])),
            "in_a_row": torch.tensor([self.worse_in_a_row, self.over_optimised_in_a_row]),
            "over_optimised_at": torch.tensor(-1 if self.over_optimised_at is None else self.over_optimised_at),
            **{f"figure.{name}": torch.tensor(of, dtype=torch.float64) for name, of in values.items()},
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        values = {key.removeprefix("figure."): of.tolist() for key, of in tensors.items() if key.startswith("figure.")}
        rows = zip(tensors["steps"].tolist(), tensors["true"].numpy(), tensors["proxy"].numpy(), strict=True)
        self.evaluations = [
            Evaluation(step, true_P, proxy_P, {name: of[n] for name, of in values.items() if not math.isnan(of[n])})
            for n, (step, true_P, proxy_P) in enumerate(rows)
        ]
        self.worse_in_a_row, self.over_optimised_in_a_row = tensors["in_a_row"].tolist()
        at = int(tensors["over_optimised_at"])
        self.over_optimised_at = None if at < 0 else at


def mean_with_interval(values_P: Floats, sign: float = 1.0) -> tuple[float, float, float]:
    """Return the mean over the known rows, times `sign`, with its 95 % interval."""
    known_P = sign * values_P[np.isfinite(values_P)]
    return float(known_P.mean()), *interval(known_P, seed=0)


def change(before_P: Floats, after_P: Floats, level: float) -> Change:
    """Return the mean difference over the prompts with scores in both evaluations, with its interval."""
    apart_P = (after_P - before_P)[np.isfinite(after_P - before_P)]
    if not apart_P.any():
        return Change(0.0, 0.0, 0.0)
    return Change(float(apart_P.mean()), *interval(apart_P, seed=0, level=level, resamples=DRAWS))
