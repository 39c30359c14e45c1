"""The global random states: seeded, kept and restored; and models without dropout."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from posttrain.train.randomness import restore, seed, states, without_dropout

CPU = torch.device("cpu")


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002  the global state


def test_seeds_and_states() -> None:
    seed(3)
    first = drawn()
    seed(3)
    assert drawn() == first
    kept = states(CPU)
    assert {"python", "numpy", "torch"} <= set(kept)
    second = drawn()
    restore(kept, CPU)
    assert drawn() == second != first


def test_without_dropout() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    drop: nn.Dropout = model[0]  # type: ignore[assignment]
    with without_dropout([model], frozenset({"ref_logp"})):
        assert drop.p == 0.0
    assert drop.p == 0.5
    with without_dropout([model], frozenset({"side"})):
        assert drop.p == 0.5
