"""The hosts of vLLM servers: this host, or others over ssh."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle
from typing import Final, TypeVar

HOSTS: Final = "POSTTRAIN_VLLM_HOSTS"
"""The hosts, by their ssh names, that vLLM servers use in turn. `localhost` is this host, without ssh."""
T = TypeVar("T")


def server_hosts(servers: int) -> list[str | None]:
    """Return the host of each vLLM server; None for this host."""
    hosts = os.environ.get(HOSTS, "").replace(",", " ").split() or ["localhost"]
    return [None if host == "localhost" else host for host, _ in zip(cycle(hosts), range(servers), strict=False)]


def on_this_host(servers: Sequence[T]) -> list[T]:
    """Return the vLLM servers in the list that run on this host."""
    return [server for server, host in zip(servers, server_hosts(len(servers)), strict=True) if host is None]
