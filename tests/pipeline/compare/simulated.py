"""Trainings out of a random number generator: prompts of unequal difficulty, seeds of unequal luck, few samples."""

from __future__ import annotations

import numpy as np

from posttrain.pipeline.compare.statistics import Floats

PROMPTS, SAMPLES = 40, 4


def side(rng: np.random.Generator, difficulty_P: Floats, gain: float, seeds: int, luck: float) -> Floats:
    """Shares of right samples [seeds, prompts]; the seeds of a setting differ by `luck`, each prompt by itself too."""
    own = rng.normal(0, luck, (seeds, 1)) + rng.normal(0, 0.5, (seeds, len(difficulty_P)))
    right = 1 / (1 + np.exp(-(gain + own - difficulty_P)))
    return rng.binomial(SAMPLES, right) / SAMPLES


def prompts(rng: np.random.Generator) -> Floats:
    return rng.normal(0, 1.5, PROMPTS)
