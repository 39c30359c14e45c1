"""A server process that answers as the Hugging Face Hub does, from a folder of repositories.

    python -m tests.pipeline.tables.hub_server FOLDER

FOLDER/datasets/ORG/NAME and FOLDER/models/ORG/NAME are repositories with the one commit `COMMIT`. Without the token
`TOKEN`, those whose name begins with `private` are not found and those with `gated` are refused; any other token is
invalid. The terms of those with `terms` are not accepted, and those with `broken` fail.
It prints its port, and writes a line for each request to FOLDER/requests.txt.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_" + "valid" * 7
_API = re.compile(r"/api/(datasets|models)/([^/]+/[^/]+)/(revision|auth-check|tree|paths-info)(?:/([^/]+))?(?:/(.*))?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer what the Hub's libraries ask."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with (self.root / "requests.txt").open("a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Range', '')}\n")
        path = unquote(urlsplit(self.path).path)
        if api := _API.fullmatch(path):
            group, name, what, revision, below = api.groups()
            if self._allowed(group, name, revision or COMMIT):
                self._api(self.root / group / name, what, below or "", body)
        elif file := _FILE.fullmatch(path):
            group = "datasets" if file[1] else "models"
            if self._allowed(group, file[2], file[3]):
                self._file(self.root / group / file[2] / file[4])
        else:
            self._refuse(404, "EntryNotFound")

    do_HEAD = do_POST = do_GET

    @property
    def root(self) -> Path:
        return Path(sys.argv[1])

    def _allowed(self, group: str, name: str, revision: str) -> bool:
        """Whether the token may read the repository at the revision; otherwise the answer is given."""
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given not in ("", TOKEN):
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif not (self.root / group / name).is_dir() or (name.partition("/")[2].startswith("private") and not given):
            self._refuse(404 if given else 401, "RepoNotFound")
        elif name.partition("/")[2].startswith("gated") and not given:
            self._refuse(401, "GatedRepo")
        elif name.partition("/")[2].startswith("terms"):
            self._refuse(403, "GatedRepo")
        elif name.partition("/")[2].startswith("broken"):
            self._refuse(501, "")
        elif revision != COMMIT:
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _api(self, repo: Path, what: str, below: str, body: bytes) -> None:
        name = "/".join(repo.parts[-2:])
        files = sorted(file for file in repo.rglob("*"))
        siblings = [{"rfilename": str(file.relative_to(repo))} for file in files if file.is_file()]
        if what == "revision":
            stated = re.search(r"^license: (.+)$", _text(repo / "README.md"), re.MULTILINE)
            card = {"license": stated[1]} if stated else {}
            found = {"id": name, "sha": COMMIT, "private": False, "gated": False, "tags": [], "siblings": siblings}
            self._json({**found, "cardData": card})
        elif what == "auth-check":
            self._json({})
        else:
            text = body.decode()
            asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
            if what == "tree":
                asked = [str(one.relative_to(repo)) for one in files if one.is_relative_to(repo / below)]
                recursive = "recursive=True" in self.path or "recursive=true" in self.path
                asked = [one for one in asked if one != below and (recursive or Path(one).parent == Path(below))]
                if not (repo / below).is_dir():
                    self._refuse(404, "EntryNotFound")
                    return
            self._json([_entry(repo, one) for one in asked if (repo / one).exists()])

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        size = file.stat().st_size
        start, end = 0, size - 1
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(asked[1]), min(int(asked[2] or end), end)
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha1(f"{file}{size}".encode(), usedforsecurity=False).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        with file.open("rb") as stream:
            stream.seek(start)
            self._end(stream.read(end + 1 - start))

    def _json(self, value: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self._end(json.dumps(value).encode())

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        self.send_response(status)
        for name, value in (("X-Error-Code", code), ("X-Error-Message", message)):
            if value:
                self.send_header(name, value)
        self._end(b"{}")

    def _end(self, data: bytes) -> None:
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Requests are in a file."""


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _entry(repo: Path, path: str) -> dict[str, Any]:
    file = repo / path
    digest = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    if file.is_dir():
        return {"type": "directory", "path": path, "oid": digest, "size": 0}
    return {"type": "file", "path": path, "oid": digest, "size": file.stat().st_size}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server process for a folder, while it lives."""
    command = [sys.executable, "-m", "tests.pipeline.tables.hub_server", str(folder)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
