"""The global random states, which a model's dropout uses; posttrain's own code has generators of its own."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import Tensor


def seed(value: int) -> None:
    """Seed python, numpy and torch, on every device."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002  # the global state that libraries use
    torch.manual_seed(value)


def states(device: torch.device) -> dict[str, Tensor]:
    """Return the random states of python, numpy, torch and the device."""
    _, numbers, spare = random.getstate()
    _, keys, place, has_spare, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    saved = {
        "python": torch.tensor(numbers),
        "python_spare": torch.tensor(math.nan if spare is None else spare, dtype=torch.float64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), place, has_spare]),
        "numpy_spare": torch.tensor(gauss, dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        saved["device"] = torch.get_device_module(device).get_rng_state()
    return saved


def restore(saved: dict[str, Tensor], device: torch.device) -> None:
    """Restore what `states` returned."""
    spare = float(saved["python_spare"])
    random.setstate((random.getstate()[0], tuple(saved["python"].tolist()), None if math.isnan(spare) else spare))
    *keys, place, has_spare = saved["numpy"].tolist()
    gauss = float(saved["numpy_spare"])
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), place, has_spare, gauss))  # noqa: NPY002
    torch.set_rng_state(saved["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(saved["device"])
