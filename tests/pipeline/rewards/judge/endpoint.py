"""An endpoint that misbehaves on command, as a process that prints its port.

    python -m tests.pipeline.rewards.judge.endpoint

POST /control {"script": [...], "then": BEHAVIOUR} sets what the next requests get and what all later ones get, and
empties the log; GET /log returns every request with its time, headers and body. Behaviours: `say TEXT`, `rule` (a judge
with a mind), `echo` (the completion alone), `hang up`, `cut`, `empty`, `429 SECONDS`, `slow SECONDS`, `drip`, `huge`,
`html`, `no choices`, `bad content`, `redirect URL`, `leak` (401 with the key in its words), or a status. A POST to
/classify gets them of a reward model: `say NUMBER` or `say LIST` are its outputs, `rule` is 1.5 for the word good.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXTS = re.compile(r"<<<([0-9a-f]{16})\n(.*?)\n\1>>>", re.DOTALL)
STATE: dict[str, Any] = {"script": [], "then": "say Verdict: 7", "log": []}
LOCK = threading.Lock()


def rule(asked: str) -> str:
    """A judge that prefers the longer text, gives 9 for the word good, and says yes to words that are there."""
    texts = [found[2] for found in TEXTS.finditer(asked)]
    if numbered := len(re.findall(r"^Reply [0-9]+:$", TEXTS.sub("", asked), re.MULTILINE)):
        numbers = (9 if "good" in text else 2 for text in texts[-numbered:])
        return "I looked.\n\n" + "\n".join(f"{nth}: {number}" for nth, number in enumerate(numbers, 1))
    if "Verdict: A" in asked:
        first, second = texts[-2:]
        return f"Verdict: {'A' if len(first) > len(second) else 'B' if len(second) > len(first) else 'tie'}"
    if "Verdict: yes" in asked:
        word = re.findall(r"the word (\w+)", asked)[-1]
        return f"I looked.\nVerdict: {'yes' if word in texts[-1] else 'no'}"
    return f"**Verdict:** {9 if 'good' in texts[-1] else 2}/10."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        with LOCK:
            served = {"data": [{"id": "m", "weights": STATE.get("weights", "")}]}
            self.send(200, json.dumps(served if self.path == "/v1/models" else STATE["log"]))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/control":
            with LOCK:
                STATE.update({"script": [], "then": "say Verdict: 7", "log": [], **json.loads(body)})
            self.send(200, "{}")
            return
        with LOCK:
            STATE["log"].append({"time": time.time(), "headers": dict(self.headers), "body": json.loads(body)})
            does = STATE["script"].pop(0) if STATE["script"] else STATE["then"]
        first, last = (json.loads(body)["messages"][place]["content"] for place in (0, -1))
        if self.path == "/classify" and does == "rule":
            does = f"say {1.5 if 'good' in last else -0.5}"
        self.behave(does, first)

    def behave(self, does: str, asked: str) -> None:
        name, _, what = does.partition(" ")
        match name:
            case "say":
                self.complete(what)
            case "rule":
                self.complete(rule(asked))
            case "echo":
                self.complete([found[2] for found in TEXTS.finditer(asked)][-1])
            case "cut":
                self.complete("Verdict: 1", finish="length")
            case "empty":
                self.complete(None)
            case "hang":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            case "slow":
                time.sleep(float(what))
                self.complete("Verdict: 7")
            case "drip":
                self.drip()
            case "huge":
                self.complete("x" * 3_000_000 + "\nVerdict: 10")
            case "html":
                self.send(200, "<html>Sign in</html>")
            case "no":
                self.send(200, json.dumps({"choices": []}))
            case "bad":
                self.send(200, json.dumps({"choices": [{"message": {"content": ["Verdict: 10"]}}]}))
            case "redirect":
                self.send(307, "", {"location": what})
            case "leak":
                self.send(401, json.dumps({"error": {"message": f"wrong key {self.headers['authorization']}"}}))
            case "400":
                self.send(400, json.dumps({"error": {"message": f"too long for {self.headers['authorization']}"}}))
            case "429":
                self.send(429, "", {"retry-after": what})
            case _:
                self.send(int(name), "out of order")

    def classify(self, text: str) -> None:
        try:
            found = json.loads(text.removeprefix("Verdict: "))
        except ValueError:
            found = text
        outputs = found if isinstance(found, list) else [found]
        data = [{"index": 0, "label": "LABEL_0", "probs": outputs, "num_classes": len(outputs)}]
        usage = {"prompt_tokens": 100, "total_tokens": 100, "completion_tokens": 0}
        self.send(200, json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}))

    def complete(self, text: str | None, finish: str = "stop") -> None:
        if self.path == "/classify":
            self.classify(text or "[]")
            return
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        self.send(200, json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}))

    def drip(self) -> None:
        """A byte every now and then: no single read times out."""
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        for _ in range(100):
            time.sleep(0.1)
            self.wfile.write(b" ")
            self.wfile.flush()

    def send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no error here."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
