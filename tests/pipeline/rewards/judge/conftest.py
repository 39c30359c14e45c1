"""A misbehaving endpoint, a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workspace import ROOT, environment


@dataclass(frozen=True)
class Endpoint:
    """The process of tests/pipeline/rewards/judge/endpoint.py."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def does(self, *script: str, then: str = "say Verdict: 7", weights: str = "") -> None:
        """What the next requests get, and all after them; `weights`: of the served model."""
        body = json.dumps({"script": script, "then": then, "weights": weights}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/control", body, timeout=10):
            pass

    @property
    def log(self) -> list[dict[str, Any]]:
        """The requests since `does`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)
            return found

    def asked(self, text: str) -> dict[str, Any]:
        """Return the body of the first request with this text; requests of several samples come in any order."""
        bodies: list[dict[str, Any]] = [request["body"] for request in self.log]
        return next(body for body in bodies if text in json.dumps(body))


@contextmanager
def running() -> Iterator[Endpoint]:
    """An endpoint in a process of its own."""
    command = [sys.executable, "-m", "tests.pipeline.rewards.judge.endpoint"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Endpoint(int(process.stdout.readline()))
        process.kill()


@pytest.fixture(scope="session")
def _endpoint() -> Iterator[Endpoint]:
    with running() as found:
        yield found


@pytest.fixture
def endpoint(_endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """An endpoint that answers 7, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _endpoint.does()
    return _endpoint
