"""How a folder's Prefect server is found, logged in to and locked."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows import server, temporary_server
from flows.server import (
    AUTH,
    KEEP,
    PORT,
    Lock,
    _retention,
    answers,
    attach,
    find,
    login,
    main,
    parser,
    prepare,
)
from flows.temporary_server import connect
from posttrain.errors import PipelineError

NOBODY = "http://127.0.0.1:9/api"


class Healthy(BaseHTTPRequestHandler):
    """Answers like a healthy Prefect server that wants the login `a:b`."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Basic {base64.b64encode(b'a:b').decode()}"
        status = 200 if self.path == "/api/health" else 404 if self.path != "/api/admin/version" else 401 - 201 * known
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}/api"
        listener.shutdown()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is configured; what the functions set in the environment is forgotten."""
    names = (
        "PREFECT_API_URL",
        "PREFECT_API_KEY",
        "PREFECT_HOME",
        "PREFECT_CLIENT_MAX_RETRIES",
        AUTH,
        *server._SETTINGS,
    )
    for name in (*names, "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_environment_of_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare(tmp_path) == tmp_path / ".prefect"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert set(os.environ["NO_PROXY"].split(",")) == {"127.0.0.1", "localhost"}
    monkeypatch.setenv("PREFECT_HOME", "/elsewhere")
    assert prepare(tmp_path) == Path("/elsewhere")


def test_old_runs_are_deleted_after_days_that_the_user_can_set(monkeypatch: pytest.MonkeyPatch) -> None:
    vacuum = "PREFECT_SERVER_SERVICES_DB_VACUUM"
    monkeypatch.delenv(KEEP, raising=False)
    assert _retention() == {f"{vacuum}_ENABLED": "events,flow_runs", f"{vacuum}_RETENTION_PERIOD": "7776000"}
    monkeypatch.setenv(KEEP, "0")
    assert _retention() == {f"{vacuum}_ENABLED": "events"}
    monkeypatch.setenv(KEEP, "-1")
    with pytest.raises(PipelineError, match="POSTTRAIN_PREFECT_DAYS = '-1' is not a number of days"):
        _retention()


def test_a_server_answers_or_not(url: str) -> None:
    assert answers(url) is True and answers(f"{url}/") is True
    assert answers(url.replace("/api", "/other")) is False
    assert answers(NOBODY) is False
    assert server._status(f"{url}/missing", {}, 5.0) == 404
    assert server._status("no address", {}, 5.0) == server._status(NOBODY, {}, 5.0) == 0


def test_the_configured_server_is_found(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    assert find(tmp_path) == url
    monkeypatch.setenv("PREFECT_API_URL", "https://api.prefect.cloud/api")
    assert find(tmp_path) == "https://api.prefect.cloud/api"
    monkeypatch.setenv("PREFECT_API_URL", NOBODY)
    with pytest.raises(PipelineError, match="no server answers at"):
        find(tmp_path)


def test_the_folders_own_server_is_found_while_it_lives(url: str, tmp_path: Path) -> None:
    file = server._address_file(tmp_path)
    assert file == tmp_path / "server.json" and find(tmp_path) is None
    file.write_text(json.dumps({"pid": os.getpid(), "url": url}))
    assert find(tmp_path) == url
    file.write_text(json.dumps({"pid": os.getpid(), "url": NOBODY}))
    assert find(tmp_path) is None
    file.write_text(json.dumps({"pid": 2**22 + 1, "url": url}))
    assert find(tmp_path) is None


def test_the_login_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = login(home)
    assert made.startswith("posttrain:") and len(made) == len("posttrain:") + 32
    assert login(home) == made == (home / "login").read_text().strip()
    assert [file.name for file in home.iterdir()] == ["login"]
    (home / "login").chmod(0o644)
    with pytest.raises(PipelineError, match="other users can read this login"):
        login(home)


def test_prefect_is_pointed_to_a_server(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="rejects the login"):
        attach(tmp_path, url)
    assert os.environ[AUTH] == login(tmp_path)
    monkeypatch.setenv(AUTH, "a:b")
    attach(tmp_path, url)
    assert os.environ["PREFECT_API_URL"] == url
    assert connect(tmp_path) is None, "it runs already"
    monkeypatch.setenv("PREFECT_API_KEY", "key")
    attach(tmp_path, NOBODY)
    assert os.environ["PREFECT_API_URL"] == NOBODY


def test_local_addresses() -> None:
    assert server._is_local("http://localhost:4200/api") is True and server._is_local("http://[::1]:1/api") is True
    assert server._is_local("https://api.prefect.cloud/api") is False


def test_only_one_server_of_a_folder_starts_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Lock(tmp_path / "new" / "starting")
    monkeypatch.setattr(server, "START_TIMEOUT", 0.0)
    with pytest.raises(PipelineError, match="another server of this folder has been starting"):
        Lock(tmp_path / "new" / "starting")
    first.release()
    first.release()
    Lock(tmp_path / "new" / "starting").release()


def test_ports_and_addresses() -> None:
    with server.listen(0) as listener:
        port = listener.getsockname()[1]
        assert server.api(listener) == f"http://127.0.0.1:{port}/api"
        with server._listen_near(port) as other:
            assert other.getsockname()[1] not in (0, port)
    with server._listen_near(port) as again:
        assert again.getsockname()[1] == port


def test_old_logs_are_removed(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"20200101-0000{number:02d}-1.log").touch()
    log = temporary_server._new_log(tmp_path)
    assert log.parent == tmp_path and log.name.endswith(f"-{os.getpid()}.log")
    assert sorted(file.name[13:15] for file in tmp_path.iterdir()) == [f"{number:02d}" for number in range(6, 25)]


def test_the_command_line(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parser().parse_args([]).port == PORT and parser().parse_args(["--port", "7"]).port == 7
    monkeypatch.chdir(tmp_path)
    assert main([]) == 1
    assert "no DVC project in this folder or above" in capsys.readouterr().err
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".prefect").mkdir()
    (tmp_path / ".prefect/server.json").write_text(json.dumps({"pid": os.getpid(), "url": url}))
    assert main([]) == 0
    assert capsys.readouterr().out == f"Prefect is at {url.removesuffix('/api')} already.\n"
