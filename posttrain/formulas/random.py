"""Random numbers that belong to a row and a position, not to a moment: a sample never depends on its neighbours.

    u = mix(key_row + t * golden) / 2^53

with SplitMix64's finaliser (Steele 2014). There is no state, so there is none to save in a checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_LOW_63 = 2**63 - 1


def row_keys(seed: int, names: Sequence[str]) -> Tensor:
    """One 64-bit key for each named row [R], the same on every machine."""
    digests = [hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest() for name in names]
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=torch.long)


def uniform(keys_R: Tensor, count: int, first_R: Tensor | None = None) -> Tensor:
    """A number in [0, 1) for each row at each of `count` positions from the row's first on, which is 0 [R, count]."""
    place_RT = torch.arange(count, device=keys_R.device) + (0 if first_R is None else first_R[:, None])
    return uniform_at(keys_R[:, None], place_RT)


def uniform_at(keys: Tensor, places: Tensor) -> Tensor:
    """A number in [0, 1) for each pair of a row's key and a position."""
    mixed = _mix(keys + ((places + 1) * _GOLDEN & _LOW_63))
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
