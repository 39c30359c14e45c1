"""Servers on other hosts need a plugin."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import EngineError
from posttrain.sampling.vllm import remote
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.sampling.vllm.remote import Remote


def test_the_way_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Remote(EngineProcess, lambda: None)
    monkeypatch.setattr(remote, "REMOTES", {"ssh": own})
    assert remote.remote() is own


def test_without_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    none: dict[str, Any] = {}
    monkeypatch.setattr(remote, "REMOTES", none)
    monkeypatch.setattr(remote, "why_unknown", lambda table, name: (f"'{name}' is unknown", "Install it"))
    with pytest.raises(EngineError) as refused:
        remote.remote()
    assert (refused.value.what, refused.value.where) == ("'ssh' is unknown", HOSTS)
    assert refused.value.fix == f"Install it. Servers on this host: unset {HOSTS}"
