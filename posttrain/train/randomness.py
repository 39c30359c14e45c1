"""The global random states, which dropout uses. posttrain's own code uses separate generators."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.distributed import world


def seed(value: int) -> None:
    """Seed python, numpy and torch on every device."""
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002  # the global state that libraries use
    torch.manual_seed(value)


@contextlib.contextmanager
def without_dropout(models: Iterable[nn.Module], needs: frozenset[str]) -> Iterator[None]:
    """Turn off dropout in models whose log-probs are compared with log-probs of a pass without dropout.

    That applies to every run with samples or a reference. Without samples, an adapter's own dropout stays on.
    """
    compared, sampled = bool(needs & {"old_logp", "ref_logp"}), "old_logp" in needs
    changed = [
        (module, key, value)
        for model in models if compared
        for name, module in model.named_modules() if sampled or "lora_dropout" not in name
        for key, value in vars(module).items()
        if isinstance(value, float) and value and ("drop" in key or "jitter" in key or _drops(module, key))
    ]  # fmt: skip
    try:
        for module, key, _ in changed:
            setattr(module, key, 0.0)
        yield
    finally:
        for module, key, value in changed:
            setattr(module, key, value)


def _drops(module: nn.Module, key: str) -> bool:
    return key == "p" and "dropout" in type(module).__name__.lower()


def states(device: torch.device) -> dict[str, Tensor]:
    """Return the random states of python, numpy, torch and the device; with several processes, of each process."""
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
    every = {name: world.gathered_tensors(part.flatten()) for name, part in saved.items()}
    others = {f"{name}.{rank}": every[name][rank] for rank in range(1, world.count()) for name in saved}
    return saved | others


def restore(saved: dict[str, Tensor], device: torch.device) -> None:
    """Restore the result of `states`. An additional process gets the state of the first process."""
    saved = {name: saved.get(f"{name}.{world.rank()}", part) for name, part in saved.items() if "." not in name}
    spare = float(saved["python_spare"])
    random.setstate((random.getstate()[0], tuple(saved["python"].tolist()), None if math.isnan(spare) else spare))
    *keys, place, has_spare = saved["numpy"].tolist()
    gauss = float(saved["numpy_spare"])
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), place, has_spare, gauss))  # noqa: NPY002
    torch.set_rng_state(saved["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(saved["device"])
