"""Hostile replies to every HTTP client of rewards and teachers, each client in a process with 2 GB of address space.

python -m benchmarks.faults.replies    asks all clients for all replies and prints the table
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, Final

from benchmarks.faults.hostile import TEXTS
from benchmarks.faults.limited import in_limited_process, measured

MEMORY: Final = 2 * 10**9
"""Bytes of address space of a client."""
CLIENTS: Final = ("judge", "endpoint", "likelihood", "weights of the judge")
MODULES: Final = {
    "judge": "posttrain.rewards.judge.judge",
    "weights of the judge": "posttrain.rewards.judge.judge",
    "endpoint": "posttrain.rewards.endpoint",
    "likelihood": "posttrain.rewards.likelihood",
    "served teacher": "posttrain.online.served_teacher",
}
EVERY: Final = ("gzip, gzip", "gzip", "deflate of an error", "endless", "nested")
"""Replies that the table has of every client; the others of the judge, as all clients have one connection."""
TEACHER: Final = "served teacher"
"""Imports torch, whose libraries alone take more than MEMORY where they are built for GPUs."""


def _bomb(layers: int) -> bytes:
    """Return a gigabyte of zeros, compressed so many times."""
    packer = zlib.compressobj(9, wbits=31)
    zeros = bytes(2**20)
    data = b"".join([*(packer.compress(zeros) for _ in range(1000)), packer.flush()])
    for _ in range(layers - 1):
        data = gzip.compress(data, 9)
    return data


def _chat(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()


@dataclass(frozen=True)
class Hostile:
    """One reply of the server."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    endless: bool = False
    """Whether the body is sent again and again."""


def replies() -> dict[str, Hostile]:
    """Return the replies by name."""
    deep = b"[" * 500_000
    return {
        "gzip, gzip": Hostile(200, _bomb(2), {"Content-Encoding": "gzip, gzip"}),
        "gzip": Hostile(200, _bomb(1), {"Content-Encoding": "gzip"}),
        "deflate of an error": Hostile(400, zlib.compress(bytes(2**28)), {"Content-Encoding": "deflate"}),
        "unknown encoding": Hostile(200, _chat("Verdict: 7"), {"Content-Encoding": "\t br2"}),
        "endless": Hostile(200, b" " * 65_536, {}, endless=True),
        "endless error": Hostile(400, b"x" * 65_536, {}, endless=True),
        "nested": Hostile(200, deep, {}),
        "many lists": Hostile(200, b"[" + b"[]," * 340_000 + b"[]]", {}),
        "a number of a million digits": Hostile(200, b'{"usage": {"prompt_tokens": ' + b"9" * 1_000_000 + b"}}", {}),
        "a verdict of a million digits": Hostile(200, _chat("Verdict: " + "9" * 1_000_000), {}),
        "many verdicts": Hostile(200, _chat("Verdict: 1 " * 90_000), {}),
        "not UTF-8": Hostile(200, b'{"choices": "\xff\xfe"}', {}),
        **{
            f"HTTP 400, {name}": Hostile(400, json.dumps({"error": {"message": text}}).encode(), {})
            for name, text in TEXTS.items()
        },
    }


@contextmanager
def serving(found: Mapping[str, Hostile]) -> Iterator[str]:
    """A server that sends the reply whose number is in the path."""
    names = list(found)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            reply = found[names[int(self.path.split("/")[1])]]
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(reply.body)
                while reply.endless:
                    self.wfile.write(reply.body)
            except OSError:  # the client has left
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def asked(client: str, url: str) -> dict[str, Any]:
    """Ask with one client in a process of its own; returns how it ended, its seconds and its largest memory."""
    memory = None if client == TEACHER else MEMORY
    return in_limited_process("benchmarks.faults.replies", client, url, memory=memory)


def _ask(client: str, url: str) -> str:
    """Return what one client makes of the reply."""
    from posttrain.rollout import Prompt, Rollout, TokenRow
    from posttrain.settings.params import check

    quick = {"url": url, "model": "m", "retries": 0, "timeout": 2, "give_up_after": 3}
    prompt = Prompt("p", [{"role": "user", "content": "2 + 2?"}], [1], "4")
    rollout = Rollout(prompt, 0, TokenRow([1], [2, 3]), [-1.0, -1.0], "four", "stop")
    if client in ("judge", "weights of the judge"):
        from posttrain.rewards.judge.judge import JudgeOptions, LanguageJudge

        judge = LanguageJudge(check(JudgeOptions, {**quick, "cache": client != "judge"}, where="judge"), "here")
        return _shown(judge([rollout])[0])
    if client == "endpoint":
        from posttrain.rewards.endpoint import ServedModel, ServedModelOptions

        return _shown(ServedModel(check(ServedModelOptions, quick, where="endpoint"), "here")([rollout])[0])
    if client == "likelihood":
        from posttrain.rewards.likelihood import Likelihood, LikelihoodOptions

        return _shown(Likelihood(check(LikelihoodOptions, quick, where="likelihood"), "here")([rollout])[0])
    from posttrain.online.served_teacher import ServedTeacher, TeacherServer

    ServedTeacher(check(TeacherServer, quick, where="served"), "here", None, "student")([TokenRow([1], [2, 3])])
    return "log-probs"


def _shown(score: Any) -> str:
    return f"{score.status}: {score.reason}" if score.status != "ok" else f"the score {score.value:g}"


def _outcome(client: str, url: str) -> str:
    """Ask with one client; returns what it makes of the reply."""
    from posttrain.errors import PosttrainError

    try:
        return _ask(client, url)
    except PosttrainError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Be one client, or ask with all of them."""
    if sys.argv[1:]:
        client, url = sys.argv[1:]
        import_module(MODULES[client])
        print(measured(lambda: _outcome(client, url)))
        return
    os.environ["XDG_CACHE_HOME"] = "/dev/null"
    print("\n".join(table()))


def table() -> Iterator[str]:
    """Yield the lines of a table: each reply with what each client makes of it."""
    from posttrain.measure.terminal import escaped

    found = replies()
    yield "| reply | client | outcome | seconds | MB |"
    yield "|---|---|---|---|---|"
    with serving(found) as url:
        for number, name in enumerate(found):
            if name.startswith("HTTP 400"):  # the table of texts has them
                continue
            for client in (*CLIENTS, TEACHER) if name in EVERY else CLIENTS[:1]:
                said = asked(client, f"{url}/{number}")
                outcome = escaped(said["outcome"])[:160].replace("|", "/")
                yield f"| {name} | {client} | {outcome} | {said['seconds']:.1f} | {said['mb']:.0f} |"


if __name__ == "__main__":
    main()
