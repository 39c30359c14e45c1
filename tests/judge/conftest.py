"""A misbehaving endpoint and a served model, each a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workspace import ROOT, environment


@dataclass(frozen=True)
class Endpoint:
    """The process of tests/judge/endpoint.py."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def does(self, *script: str, then: str = "say Verdict: 7") -> None:
        """What the next requests get, and all after them."""
        body = json.dumps({"script": script, "then": then}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/control", body, timeout=10):
            pass

    @property
    def log(self) -> list[dict[str, Any]]:
        """The requests since `does`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)
            return found


@pytest.fixture(scope="session")
def _endpoint() -> Iterator[Endpoint]:
    command = [sys.executable, "-m", "tests.judge.endpoint"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Endpoint(int(process.stdout.readline()))
        process.kill()


@pytest.fixture
def endpoint(_endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """An endpoint that answers 7, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _endpoint.does()
    return _endpoint


class Served:
    """`posttrain serve` as a process."""

    def __init__(self, model: Path, cache: Path, **variables: str) -> None:
        command = [sys.executable, "-m", "posttrain", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment(), "XDG_CACHE_HOME": str(cache), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.readline()
        found = re.search(r"at (http://\S+); its key is in (\S+)\. Ctrl-C", self.output)
        assert found, self.output + self.process.stdout.read()
        self.url, self.place = found[1], found[2]
        self.key = variables.get("POSTTRAIN_SERVE_KEY") or Path(self.place).read_text(encoding="utf-8").strip()

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """End the server, and keep what it printed."""
        self.process.send_signal(how)
        out, _ = self.process.communicate(timeout=60)
        self.output += out
        return self.process.returncode

    def ask(self, path: str, body: Mapping[str, Any] | bytes | None = None, key: str | None = None) -> tuple[int, Any]:
        """(status, JSON or text) of a request."""
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers that do not outlive the test."""
    started: list[Served] = []

    def start(model: Path, **variables: str) -> Served:
        started.append(Served(model, tmp_path / "cache", **variables))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


os.environ.setdefault("NO_PROXY", "127.0.0.1")
