"""A served model that obeys two rules, for the recipe `constitutional`: `python -m tests.pipeline.rule_critic 8000`.

It speaks OpenAI's protocol. It finds the rule in the principle that it is asked about, criticises, revises and compares
by it, and says A where two answers are equal by it. By a hash of the texts some replies lack the asked form, and the
worse answer of some pairs is preferred in both orders. It counts what it did, so that a test knows.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

GREETING, INVITATION = "Hello!", "Ask me."
PART = re.compile(r"<(\w+)>\n(.*?)\n</\1>", re.DOTALL)


class RuleCritic(ThreadingHTTPServer):
    """Serves the two rules, and keeps the counts of what it replied by kind."""

    daemon_threads = True

    def __init__(self, port: int = 0, key: str = "") -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.key, self.counts, self._lock = key, Counter[str](), threading.Lock()

    @property
    def url(self) -> str:
        """The address that CONSTITUTION_URL takes."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, asked: str) -> str:
        """Return the reply to a request of the recipe."""
        parts = dict(PART.findall(asked))
        texts = sorted(parts[name] for name in ("answer", "A", "B") if name in parts)
        named = json.dumps([parts["question"], parts["principle"], texts])
        chance = int(hashlib.sha256(named.encode()).hexdigest(), 16) % 12
        reply, kind = _comparison(parts, chance) if "A" in parts else _reply(parts, chance)
        with self._lock:
            self.counts[kind] += 1
        return reply


def kept(principle: str, answer: str) -> bool:
    """Return whether an answer keeps the rule of a principle."""
    lines = answer.split("\n")
    if GREETING in principle:
        return lines[0] == GREETING and len(lines) > 1
    return any(line == INVITATION and after.startswith("####") for line, after in pairwise(lines))


def _reply(parts: dict[str, str], chance: int) -> tuple[str, str]:
    principle, answer = parts["principle"], parts["answer"]
    if "critique" not in parts:
        return ("It keeps it." if kept(principle, answer) else "The words of the principle are missing."), "critique"
    if chance == 0:
        return "I would rather not.", "no revision"
    if kept(principle, answer):
        return f"<revision>{answer}</revision>", "unchanged"
    if GREETING in principle:
        return f"<revision>\n{GREETING}\n{answer}\n</revision>", "revised"
    *working, last = answer.split("\n")
    lines = [*working, INVITATION, last if last.startswith("####") else f"#### {last}"]
    return "Here it is.\n<revision>{}</revision>".format("\n".join(lines)), "revised"


def _comparison(parts: dict[str, str], chance: int) -> tuple[str, str]:
    first, second = kept(parts["principle"], parts["A"]), kept(parts["principle"], parts["B"])
    if chance == 0:
        return "I cannot say.", "no verdict"
    if first == second:
        return "They are alike.\nA", "alike"
    return "BA"[first == (chance != 1)], "wrong" if chance == 1 else "right"


class Handler(BaseHTTPRequestHandler):
    """One request of OpenAI's chat completions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes
    server: RuleCritic

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
            self._send(401, {"error": {"message": "wrong key"}})
            return
        text = self.server.answer(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": text}
        self._send(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = RuleCritic(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.url, flush=True)
    server.serve_forever()
