"""What is done with a prompt's group of samples before it is trained on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def agreeing(reward_G: Tensor) -> bool:
    """Whether a group's rewards are all the same, so that comparing them teaches nothing."""
    return bool((reward_G == reward_G[0]).all())


def soft_overlong(lengths: Sequence[int], longest: int, cache: int) -> list[float]:
    """0 up to longest - cache, then linear down to -1 at longest, -1 beyond (DAPO, Yu 2025)."""
    return [-min(max((length - (longest - cache)) / cache, 0.0), 1.0) for length in lengths]
