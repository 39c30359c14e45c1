"""vLLM servers on other hosts. A plugin of the group `posttrain.engines.hosts` starts them."""

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
    """A way to start servers on other hosts."""

    process: Callable[..., EngineProcess]
    """(host, options, environment, first=process or None, number=0) -> a server there, with EngineProcess's methods."""
    check: Callable[[], object]
    """Raise an EngineError if this host lacks something that a server needs."""


REMOTES: Final[Listing[Remote]] = Listing("", "", group="engines.hosts", adopt=instance(Remote))
"""Name -> way to start servers on other hosts."""


def remote() -> Remote:
    """Return the way to start servers on the hosts in HOSTS."""
    if "ssh" in REMOTES:
        return REMOTES["ssh"]
    what, fix = why_unknown(REMOTES, "ssh")
    raise EngineError(what=what, where=HOSTS, fix=f"{fix}. Servers on this host: unset {HOSTS}")
