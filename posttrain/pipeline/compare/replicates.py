"""Choose the replicates of a contrast: pairs of trainings, or only seeds if a seed acts alike in all settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from posttrain.pipeline.compare.statistics import Difference, Floats, paired

SLACK = 1e-9


@dataclass(frozen=True)
class Contrast:
    """Pairs of trainings with equal seed and other settings. Each combination of other settings has equal weight."""

    apart_NP: Floats
    """Left minus right, [pairs, prompts]."""
    contexts: Sequence[Hashable]
    """The other settings of each pair."""
    seeds: Sequence[str]

    @property
    def count(self) -> int:
        """The number of seeds."""
        return len(set(self.seeds))

    @property
    def freedom(self) -> int:
        """The degrees of freedom if each pair is a replicate: pairs minus combinations of the other settings."""
        return len(self.contexts) - len(set(self.contexts))

    @property
    def weights(self) -> Floats:
        """The weight of each pair in the mean: 1 / (combinations x pairs of its combination)."""
        sizes = np.array([list(self.contexts).count(context) for context in self.contexts], dtype=float)
        weight_N: Floats = 1 / sizes / len(set(self.contexts))
        return weight_N

    def rest(self, values_N: Floats) -> Floats:
        """Return each pair's value minus the mean of its combination."""
        same_NN = np.array([[one == other for other in self.contexts] for one in self.contexts], dtype=float)
        rest: Floats = values_N - (same_NN / same_NN.sum(axis=1, keepdims=True)) @ values_N
        return rest

    @property
    def by_pair(self) -> float:
        """The variance of the mean if each pair is a replicate: s^2 sum w^2, s^2 = sum rest^2 / freedom."""
        rest_N = self.rest(self.apart_NP.mean(axis=1))
        return float((rest_N**2).sum() / self.freedom * (self.weights**2).sum())

    @property
    def by_seed(self) -> float:
        """The variance of the mean if only the seeds are replicates: S / (S - 1) sum_seeds (sum_pairs w rest)^2."""
        parts_N = self.weights * self.rest(self.apart_NP.mean(axis=1))
        totals = [
            sum(part for part, seed in zip(parts_N, self.seeds, strict=True) if seed == one)
            for one in dict.fromkeys(self.seeds)
        ]
        return float(self.count / (self.count - 1) * sum(total**2 for total in totals))

    @property
    def within(self) -> float:
        """The part of the variance of the mean that lies within a pair and a prompt."""
        prompts = self.apart_NP.shape[1]
        if prompts < 2 or not self.freedom:
            return 0.0
        rest_NP = self.rest(self.apart_NP)
        rest_NP = rest_NP - rest_NP.mean(axis=1, keepdims=True)
        return float((rest_NP**2).sum() / self.freedom / (prompts - 1) / prompts * (self.weights**2).sum())


@dataclass(frozen=True)
class Replicates:
    """The way to compute the error of a factor's contrasts, chosen from all pairs of its levels."""

    kind: Literal["pairs", "seeds"]
    """seeds: a seed changes the difference alike in all combinations of the other settings, so that the pairs of one
    seed are not independent."""
    levels: int = 2
    of_one_seed: float = 0.0
    """The mean variance of a contrast of all levels, times its number of seeds."""

    def difference(self, of: Contrast) -> Difference:
        """Return the measured difference of a contrast, with its error.

        pairs: Student's t with the variance and the degrees of freedom of its own pairs. seeds: the seeds' variance,
        pooled over all L levels of the factor, with (L - 1) (S - 1) degrees of freedom. If its own variance is larger,
        as of a level that is less stable than the others, its own with S - 1.
        """
        if not of.freedom:
            return paired(of.apart_NP, of.weights, 0.0, 0.0, 0)
        if self.kind == "pairs":
            return paired(of.apart_NP, of.weights, of.within, of.by_pair, of.freedom)
        pooled = self.of_one_seed / of.count, (self.levels - 1) * (of.count - 1)
        variance, freedom = max(pooled, (of.by_seed, of.count - 1), (of.by_pair, of.freedom))
        return paired(of.apart_NP, of.weights, of.within, variance, freedom)


def replicates(contrasts: Sequence[Contrast]) -> Replicates:
    """Return the kind of replicates, from the contrasts of all pairs of a factor's levels.

    The two variances have the same expectation if the pairs are independent. If a seed acts alike in all combinations
    of the other settings, that by seeds is larger, and it counts.
    """
    several = [one for one in contrasts if one.freedom and one.count > 1]
    if not several:
        return Replicates("pairs")
    by_seed = float(np.mean([one.by_seed * one.count for one in several]))
    by_pair = float(np.mean([one.by_pair * one.count for one in several]))
    if by_seed < by_pair * (1 - SLACK):
        return Replicates("pairs")
    levels = round((1 + np.sqrt(1 + 8 * len(several))) / 2)  # L levels have L (L - 1) / 2 pairs
    return Replicates("seeds", levels, by_seed)
