"""Servers of vLLM on other hosts: a plugin of the group `posttrain.engines.hosts` starts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from posttrain.errors import EngineError
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.settings.listing import Listing, instance, why_unknown


@dataclass(frozen=True)
class Remote:
    """A way to other hosts."""

    process: Callable[..., EngineProcess]
    """(host, options, environment, first=process or None, number=0) -> a server there; as EngineProcess here."""
    check: Callable[[], object]
    """Raises an EngineError where this host lacks what the way needs."""


REMOTES: Final[Listing[Remote]] = Listing("", "", group="engines.hosts", adopt=instance(Remote))
"""Name -> way."""


def remote() -> Remote:
    """Return the way to the hosts of HOSTS."""
    if "ssh" in REMOTES:
        return REMOTES["ssh"]
    what, fix = why_unknown(REMOTES, "ssh")
    raise EngineError(what=what, where=HOSTS, fix=f"{fix}. Servers on this host: unset {HOSTS}")
