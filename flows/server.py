"""Prefect's server on loopback, behind a login, its database in .prefect/; `python -m flows.server` keeps one up."""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flows.door import NAMES, Door
from flows.graph import find_root
from posttrain.errors import PipelineError, PosttrainError
from posttrain.workspace import library_command, library_environment

HOST = "127.0.0.1"
PORT = 4200
AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
START_PATIENCE = 180.0
_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    # In memory, its default, what a killed server had lent out (GPU slots) would be taken for ever.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # Prefect's own default of 20 seconds is too short for its first start, which makes the database.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": f"{START_PATIENCE:.0f}",
}


def prepare(root: Path) -> Path:
    """Set Prefect's environment where the user has not; must come before Prefect is imported. Returns its folder."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    home = Path(os.environ.setdefault("PREFECT_HOME", str(root / ".prefect")))
    for name in ("NO_PROXY", "no_proxy"):
        # A proxy would be asked for the way to this very machine.
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join([*hosts, *({HOST, "localhost"} - set(hosts))])
    return home


def find(home: Path) -> str | None:
    """The API of the server that the user named, or of the one that `python -m flows.server` keeps up here."""
    named = os.environ.get("PREFECT_API_URL")
    if named:
        if _is_local(named) and not answers(named):
            fix = "Start it, or unset PREFECT_API_URL: the flow then runs its own"
            raise PipelineError(what=f"no server answers at {named}", where="PREFECT_API_URL", fix=fix)
        return named
    try:
        note = json.loads(_note(home).read_text(encoding="utf-8"))
        pid, url = int(note["pid"]), str(note["url"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if answers(url) else None


def answers(url: str, patience: float = 5.0) -> bool:
    """Whether a healthy server is there; one that listens already but is still starting is waited for."""
    return _status(f"{url.rstrip('/')}/health", {}, patience) == 200


def login(home: Path) -> str:
    """The login of this folder's servers, `name:password`, made on first use in a file that only its owner can read."""
    file, fresh = home / "login", home / f".login-{os.getpid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as stream:
                stream.write(f"posttrain:{secrets.token_urlsafe(24)}\n")
            with contextlib.suppress(FileExistsError):  # another process was faster: its login counts
                os.link(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
    if file.stat().st_mode & 0o077:
        fix = f"Delete it, so that a new one is made, or if you trust all users of this host: chmod 600 {file}"
        raise PipelineError(what="other users can read this login", where=str(file), fix=fix)
    return file.read_text(encoding="utf-8").strip()


def attach(home: Path, url: str) -> None:
    """Point Prefect in this process and its children to a server; a local one is given the login of `home`."""
    os.environ["PREFECT_API_URL"] = url
    if os.environ.get("PREFECT_API_KEY"):
        return
    if _is_local(url) and not os.environ.get(AUTH):
        os.environ[AUTH] = login(home)
    token = base64.b64encode(os.environ.get(AUTH, "").encode()).decode()
    if _status(f"{url.rstrip('/')}/admin/version", {"Authorization": f"Basic {token}"}, 30.0) == 401:
        fix = f"Set {AUTH} to what `python -m flows.server` printed there, or copy its .prefect/login to {home}/login"
        raise PipelineError(what=f"the server at {url} refuses the login", where=AUTH, fix=fix)


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in (*NAMES, "::1")


def _status(url: str, headers: dict[str, str], patience: float) -> int:
    """The HTTP status of the answer, 0 without one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=patience) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True)
class Temporary:
    """A server that ends with this process, however that ends."""

    url: str
    log: Path

    def wait(self) -> None:
        """Wait until it answers."""
        if not answers(self.url, START_PATIENCE):
            fix = "Read that file, or start one yourself with `python -m flows.server`"
            raise PipelineError(what="Prefect's server did not start", where=str(self.log), fix=fix)


def connect(home: Path) -> Temporary | None:
    """Point Prefect to the server that is up, or to a temporary one, which is then to be waited for."""
    url = find(home)
    if url is not None:
        attach(home, url)
        return None
    return start_temporary(home)


def start_temporary(home: Path) -> Temporary:
    """Start one and point Prefect to it; its port is listened on at once, so that nobody else can take it meanwhile."""
    env = {**library_environment(), SERVER_AUTH: login(home)}
    listener = _listen(0)
    url = _api(listener)
    command = library_command("flows.server", "--socket", str(listener.fileno()), "--parent", str(os.getpid()))
    # A session of its own: Ctrl-C on the terminal must not end the server before the flow has told it how it went.
    log = home / "temporary-server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    listener.close()
    # Registered before Prefect is imported, and so run after Prefect has sent its last logs and events.
    atexit.register(_stop, process)
    os.environ["PREFECT_API_URL"], os.environ[AUTH] = url, login(home)
    # A server of this very process answers or is gone: by default each request is tried for a minute.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")
    return Temporary(url, log)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _note(home: Path) -> Path:
    return home / "server.json"


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(128)
    return listener


def _api(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}/api"


def _listen_near(port: int) -> socket.socket:
    try:
        return _listen(port)
    except OSError:
        return _listen(0)


def _serve_temporary(listener: socket.socket, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() == parent:
        _serve(listener)


def _serve(listener: socket.socket) -> None:
    """Run the server in this process until it is told to end."""
    import uvicorn

    port = listener.getsockname()[1]
    os.environ.pop("PREFECT_API_URL", None)
    os.environ.update(
        PREFECT_SERVER_API_HOST=HOST,
        PREFECT_SERVER_API_PORT=str(port),
        PREFECT_SERVER_CORS_ALLOWED_ORIGINS=",".join(f"http://{name}:{port}" for name in NAMES),
        PREFECT_SERVER_CSRF_PROTECTION_ENABLED="true",
    )
    from prefect.server.api.server import create_app  # reads these settings when it is imported

    config = uvicorn.Config(
        Door(create_app()),
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _keep_up(home: Path, port: int) -> None:
    """Serve until Ctrl-C, with a note in `home` by which flows find the server."""
    import threading

    os.environ.setdefault(SERVER_AUTH, login(home))
    listener = _listen_near(port)
    url, note = _api(listener), _note(home)
    # Logs are read by others and kept: only a terminal shows the login itself.
    shown = os.environ[SERVER_AUTH] if sys.stdout.isatty() else f"what is in {home / 'login'}"

    def tell() -> None:
        if answers(url, START_PATIENCE):
            fresh = note.with_suffix(".new")
            fresh.write_text(json.dumps({"pid": os.getpid(), "url": url}) + "\n", encoding="utf-8")
            fresh.replace(note)
            print(
                f"Prefect is at {url.removesuffix('/api')} (Ctrl-C ends it); flows in this folder report there.\n"
                f"Its pages ask for a login: {shown}",
                flush=True,
            )

    threading.Thread(target=tell, daemon=True).start()
    try:
        _serve(listener)
    except KeyboardInterrupt:
        pass
    finally:
        note.unlink(missing_ok=True)


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.server", description="Keep Prefect's server and pages up, on loopback."
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; another free one if it is taken")
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.socket is not None:
        _serve_temporary(socket.socket(fileno=options.socket), options.parent)
        return 0
    try:
        home = prepare(find_root(Path.cwd()))
        os.environ.pop("PREFECT_API_URL", None)
        url = find(home)
    except PosttrainError as error:
        print(error, file=sys.stderr)
        return 1
    if url is not None:
        print(f"Prefect is at {url.removesuffix('/api')} already.")
        return 0
    # SIGTERM, like Ctrl-C, takes the note away.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _keep_up(home, options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
