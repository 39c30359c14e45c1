"""The hosts of vLLM's servers, in turn."""

from __future__ import annotations

import pytest

from posttrain.sampling.vllm.hosts import HOSTS, on_this_host, server_hosts


def test_hosts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, "a, localhost b")
    assert server_hosts(4) == ["a", None, "b", "a"] and on_this_host([1, 2, 3, 4, 5]) == [2, 5]
    monkeypatch.delenv(HOSTS)
    assert server_hosts(2) == [None, None] and on_this_host("ab") == ["a", "b"]
