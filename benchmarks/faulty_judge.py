"""A judge behind an OpenAI-compatible endpoint that fails on a share of first requests: it prints its port.

python -m benchmarks.faulty_judge SHARE
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from posttrain.rewards.numeric import NumericOptions, expected_number, final_number

TEXTS = re.compile(r"<<<([0-9a-f]{16})\n(.*?)\n\1>>>", re.DOTALL)
FAULTS = ("hang up", "status 500", "a page in place of a completion", "nonsense")
ASKED: set[bytes] = set()


def verdict(question: str) -> int:
    """1 if the completion, the second text in the question, ends with the answer, the first one."""
    answer, completion = (found[2] for found in TEXTS.finditer(question))
    number = final_number(completion, NumericOptions(after="####"))
    return int(number is not None and number == expected_number(answer, None))


class Judge(BaseHTTPRequestHandler):
    """Each question fails at most once, so asking again helps."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        """Answer, or fail in one of the ways above."""
        body = self.rfile.read(int(self.headers["content-length"]))
        digest = hashlib.sha256(body).digest()
        fails = digest not in ASKED and int.from_bytes(digest[:4], "big") / 2**32 < float(sys.argv[1])
        ASKED.add(digest)
        fault = FAULTS[digest[4] % len(FAULTS)] if fails else ""
        if fault == "hang up":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "status 500":
            self._send(500, "out of order")
        elif fault == "a page in place of a completion":
            self._send(200, "<html>Sign in</html>")
        else:
            said = "It depends." if fault else f"Verdict: {verdict(json.loads(body)['messages'][0]['content'])}"
            message = {"role": "assistant", "content": said}
            usage = {"prompt_tokens": 100, "completion_tokens": 3}
            self._send(200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))

    def _send(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
