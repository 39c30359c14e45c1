"""The process's own random states. Everything here draws from generators of its own; a model's dropout does not."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import Tensor


def seed(value: int) -> None:
    """Seed python, numpy and torch, on every device."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002  # the state that libraries share
    torch.manual_seed(value)


def states(device: torch.device) -> dict[str, Tensor]:
    """Where python, numpy, torch and the device are in their random numbers."""
    _, numbers, spare = random.getstate()
    _, keys, place, has_spare, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    found = {
        "python": torch.tensor(numbers),
        "python_spare": torch.tensor(math.nan if spare is None else spare, dtype=torch.float64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), place, has_spare]),
        "numpy_spare": torch.tensor(gauss, dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        found["device"] = torch.get_device_module(device).get_rng_state()
    return found


def restore(kept: dict[str, Tensor], device: torch.device) -> None:
    """Resume from `states`."""
    spare = float(kept["python_spare"])
    random.setstate((random.getstate()[0], tuple(kept["python"].tolist()), None if math.isnan(spare) else spare))
    *keys, place, has_spare = kept["numpy"].tolist()
    gauss = float(kept["numpy_spare"])
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), place, has_spare, gauss))  # noqa: NPY002
    torch.set_rng_state(kept["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(kept["device"])
