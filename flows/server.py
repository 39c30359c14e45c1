"""Prefect's server on loopback with a login and its database in .prefect/. `posttrain server` runs one."""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from posttrain.errors import PipelineError, PosttrainError
from posttrain.files import write_json
from posttrain.measure.terminal import escaped

from .graph import find_root
from .origin_check import NAMES, OriginCheck

EXAMPLE = "--port 4201"
HOST = "127.0.0.1"
PORT, MAX_PORT = 4200, 65535
AUTH = "PREFECT_API_AUTH_STRING"
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
START_TIMEOUT = 180.0
KEEP = "POSTTRAIN_PREFECT_DAYS"
"""The variable with the days that Prefect's records of a run are kept. DVC and git keep results for ever."""
KEEP_DAYS = "90"
_VACUUM = "PREFECT_SERVER_SERVICES_DB_VACUUM"
_LOCK_POLL = 0.1
_PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    # In memory (the default) a killed server would never release the GPU slots in use.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # Prefect's default of 20 seconds is too short for its first start, which creates the database.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": f"{START_TIMEOUT:.0f}",
}


def prepare(root: Path) -> Path:
    """Set Prefect's environment variables that are not set. Call it before importing Prefect. Return PREFECT_HOME."""
    for name, value in {**_SETTINGS, **_retention()}.items():
        os.environ.setdefault(name, value)
    home = Path(os.environ.setdefault("PREFECT_HOME", str(root / ".prefect")))
    for name in ("NO_PROXY", "no_proxy"):
        # Requests to this machine must not go through a proxy.
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join([*hosts, *({HOST, "localhost"} - set(hosts))])
    return home


def _retention() -> dict[str, str]:
    """Return the settings by which the server deletes old runs from its database."""
    days = os.environ.get(KEEP, KEEP_DAYS)
    if not days.isdecimal():
        fix = "Give whole days, or 0 to keep all runs"
        raise PipelineError(what=f"{KEEP} = '{days}' is not a number of days", where="environment", fix=fix)
    if int(days) == 0:
        return {f"{_VACUUM}_ENABLED": "events"}
    return {f"{_VACUUM}_ENABLED": "events,flow_runs", f"{_VACUUM}_RETENTION_PERIOD": str(int(days) * 86_400)}


def find(home: Path) -> str | None:
    """Return the API address from PREFECT_API_URL or of this folder's `posttrain server`; None without a server."""
    configured = os.environ.get("PREFECT_API_URL")
    if configured:
        if _is_local(configured) and not answers(configured):
            fix = "Start it, or unset PREFECT_API_URL so that the flow starts a server"
            raise PipelineError(what=f"no server answers at {configured}", where="PREFECT_API_URL", fix=fix)
        return configured
    try:
        address = json.loads(_address_file(home).read_text(encoding="utf-8"))
        pid, url = int(address["pid"]), str(address["url"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if answers(url) else None


def answers(url: str, timeout: float = 5.0) -> bool:
    """Tell whether a healthy server answers. Wait for a server that listens but is still starting."""
    return _status(f"{url.rstrip('/')}/health", {}, timeout) == 200


def login(home: Path) -> str:
    """Return the login of this folder's servers, `name:password`, created on first use in a private file."""
    file, fresh = home / "login", home / f".login-{os.getpid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as stream:
                stream.write(f"posttrain:{secrets.token_urlsafe(24)}\n")
            with contextlib.suppress(FileExistsError):  # another process has just created it
                os.link(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
    if file.stat().st_mode & 0o077:
        fix = f"Delete it to get a new login. If you trust all users of this host, run `chmod 600 {file}`"
        raise PipelineError(what="other users can read this login", where=str(file), fix=fix)
    return file.read_text(encoding="utf-8").strip()


def attach(home: Path, url: str) -> None:
    """Point Prefect in this process and its children to a server. A local server uses the login of `home`."""
    os.environ["PREFECT_API_URL"] = url
    if os.environ.get("PREFECT_API_KEY"):
        return
    if _is_local(url) and not os.environ.get(AUTH):
        os.environ[AUTH] = login(home)
    token = base64.b64encode(os.environ.get(AUTH, "").encode()).decode()
    if _status(f"{url.rstrip('/')}/admin/version", {"Authorization": f"Basic {token}"}, 30.0) == 401:
        fix = (
            f"Set {AUTH} to the login that `posttrain server` printed there, or copy its .prefect/login to {home}/login"
        )
        raise PipelineError(what=f"the server at {url} rejects the login", where=AUTH, fix=fix)


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in (*NAMES, "::1")


def _status(url: str, headers: dict[str, str], timeout: float) -> int:
    """Return the HTTP status of the answer; 0 without an answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


class Lock:
    """A lock held while a server starts, because two starting servers would both migrate the same database."""

    def __init__(self, file: Path) -> None:
        """Wait until no other server of this folder is starting. The kernel releases a killed process's lock."""
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + START_TIMEOUT
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > until:
                    what = f"another server of this folder has been starting for {START_TIMEOUT:.0f} s"
                    fix = f"Stop it, or read the newest log in {file.parent / 'servers'}"
                    raise PipelineError(what=what, where=str(file), fix=fix) from error
                time.sleep(_LOCK_POLL)

    def release(self) -> None:
        """Let the next server start. It is safe to call this twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 to {MAX_PORT}")
    return int(text)


def _address_file(home: Path) -> Path:
    return home / "server.json"


def listen(port: int) -> socket.socket:
    """Open a port on loopback; 0 is any free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(128)
    return listener


def api(listener: socket.socket) -> str:
    """Return the address of the API of a server that takes this socket."""
    return f"http://{HOST}:{listener.getsockname()[1]}/api"


def _listen_near(port: int) -> socket.socket:
    try:
        return listen(port)
    except OSError:
        return listen(0)


def _serve_temporary(listener: socket.socket, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() == parent:
        _serve(listener)


def _serve(listener: socket.socket) -> None:
    """Run the server in this process until it is stopped."""
    import uvicorn

    port = listener.getsockname()[1]
    os.environ.pop("PREFECT_API_URL", None)
    os.environ.update(
        PREFECT_SERVER_API_HOST=HOST,
        PREFECT_SERVER_API_PORT=str(port),
        PREFECT_SERVER_CORS_ALLOWED_ORIGINS=",".join(f"http://{name}:{port}" for name in NAMES),
        PREFECT_SERVER_CSRF_PROTECTION_ENABLED="true",
        PREFECT_UI_URL=f"http://{HOST}:{port}",  # for the addresses in messages of its automations
    )
    from prefect.server.api.server import create_app  # reads these settings when it is imported

    config = uvicorn.Config(
        OriginCheck(create_app()),
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _serve_in_folder(home: Path, port: int) -> None:
    """Serve until Ctrl-C. The address is in a file in `home`, where flows find it."""
    import threading

    os.environ.setdefault(SERVER_AUTH, login(home))
    start = Lock(home / "starting")
    listener = _listen_near(port)
    url, file = api(listener), _address_file(home)
    # The login is printed on a terminal only: others may read a log.
    login_text = os.environ[SERVER_AUTH] if sys.stdout.isatty() else f"what is in {home / 'login'}"

    def announce() -> None:
        answered = answers(url, START_TIMEOUT)
        start.release()
        if answered:
            write_json(file, {"pid": os.getpid(), "url": url})
            print(
                f"Prefect is at {url.removesuffix('/api')} (Ctrl-C ends it); flows in this folder report there.\n"
                f"Its pages ask for a login: {login_text}",
                flush=True,
            )

    threading.Thread(target=announce, daemon=True).start()
    try:
        _serve(listener)
    except KeyboardInterrupt:
        pass
    finally:
        file.unlink(missing_ok=True)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="posttrain server",
        description="Run Prefect's server and UI on loopback until Ctrl-C; flows in this folder report to it.",
        epilog=f"example: posttrain server {EXAMPLE}",
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the port; the other arguments are for servers that flows start themselves."""
    parser.add_argument(
        "--port", type=_port, default=PORT, help=f"the port, or a free one if it is in use; default: {PORT}"
    )
    parser.add_argument(
        "--keep-days",
        type=int,
        metavar="N",
        help=f"delete runs from the server after N days; 0: never; default: {KEEP}, or {KEEP_DAYS}",
    )
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def main(words: list[str] | None = None) -> int:
    """Run the command line."""
    return run(parser().parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Run the server and return the exit code."""
    if options.socket is not None:
        _serve_temporary(socket.socket(fileno=options.socket), options.parent)
        return 0
    if options.keep_days is not None:
        os.environ[KEEP] = str(options.keep_days)
    try:
        home = prepare(find_root(Path.cwd()))
        os.environ.pop("PREFECT_API_URL", None)
        url = find(home)
    except PosttrainError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return 1
    if url is not None:
        print(f"Prefect is at {url.removesuffix('/api')} already.")
        return 0
    # SIGTERM, like Ctrl-C, removes the file with the address.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    _serve_in_folder(home, options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
