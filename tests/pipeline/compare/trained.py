"""Trainings that are written out, as if they were experiments of a sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.moved import scored_rows

PROMPTS = 40


def trained(algorithm: str, kl: str = "none", seed: int = 1, gain: float = 0.0, **more: Any) -> EvaluatedPolicy:
    """A training of grpo's run: its score is `gain` above that of its prompt, with some luck of its own."""
    name = f"{algorithm}-{kl}-{seed}"
    rng = np.random.default_rng(sum(name.encode()))
    own = {"algorithm": algorithm, "kl": kl} if kl == "none" else {"algorithm": algorithm, "kl.beta": kl}
    own |= more.pop("own", {})
    luck = rng.normal(0, more.pop("luck", 0.005)) + rng.normal(0, 0.02, PROMPTS)
    given: dict[str, Any] = {
        "policy": "grpo", "model": "online/grpo", "prompts": tuple(map(str, range(PROMPTS))), "curve": {},
        "settings": {**{f"online.runs.grpo.{key}": value for key, value in own.items()},
                     "online.runs.grpo.seed": str(seed)},
        "section": "online.runs.grpo", "parsed": True, "seconds": None, "trained": name, "weights": "dvc",
        "rows": scored_rows(pl.DataFrame()),
        "scores_P": np.linspace(0.2, 0.6, PROMPTS) + gain + luck,
    }  # fmt: skip
    return EvaluatedPolicy(more.pop("name", name), **{**given, **more})


def study(seeds: tuple[int, ...] = (1, 2, 3)) -> list[EvaluatedPolicy]:
    """Three algorithms, KL none or 0.04, several seeds: cispo gains 0.1, the KL costs 0.05, dr_grpo changes nothing."""
    gains = {"grpo": 0.0, "dr_grpo": 0.0, "cispo": 0.1}
    return [
        trained(algorithm, kl, seed, gain - 0.05 * (kl != "none"))
        for algorithm, gain in gains.items()
        for kl in ("none", "0.04")
        for seed in seeds
    ]
