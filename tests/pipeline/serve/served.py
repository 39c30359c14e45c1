"""`posttrain serve` as a process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.workspace import ROOT, environment


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
