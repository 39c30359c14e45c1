"""A server on the loopback that keeps what is posted to it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook(ThreadingHTTPServer):
    """Keeps what is posted to it; answers with the codes in `answers` (0: hangs up), then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keep)
        self.posted: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class _Keep(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        code = self.server.answers.pop(0) if self.server.answers else 200
        if code == 0:
            self.close_connection = True
            return
        self.send_response(code)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
