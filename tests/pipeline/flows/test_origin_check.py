"""Who may ask Prefect's server: our own commands and a person with the login, but no web page of another site."""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows import server as flows_server
from flows.origin_check import refusal_reason
from posttrain.errors import PipelineError
from tests.pipeline.flows.project import Project, call
from tests.pipeline.report import browser

FLOW = {"name": "made-by-a-test"}


def ask(url: str, path: str, headers: dict[str, str], method: str = "POST") -> tuple[int, dict[str, str]]:
    """Status and headers of the answer, with every header of the request as given."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest(method, f"{parts.path}{path}", skip_host=True)
    body = json.dumps(FLOW).encode() if method == "POST" else b""
    for name, value in {"Host": parts.netloc, "Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    reply = connection.getresponse()
    reply.read()
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}


def with_login(env: dict[str, str], **more: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(env['PREFECT_API_AUTH_STRING'].encode()).decode()}", **more}


@pytest.mark.slow
def test_nothing_is_done_without_the_login(server_env: dict[str, str]) -> None:
    url = server_env["PREFECT_API_URL"]
    assert ask(url, "/health", {}, "GET")[0] == 200
    assert ask(url, "/admin/version", {}, "GET")[0] == 401
    assert ask(url, "/admin/version", {"Authorization": "Basic cG9zdHRyYWluOng="}, "GET")[0] == 401
    assert ask(url, "/flows/", {"Content-Type": "text/plain"})[0] == 403, "what a form of another site could send"
    assert ask(url, "/flows/", with_login(server_env))[0] == 403, "and not without a CSRF token"
    assert call(url, server_env["PREFECT_API_AUTH_STRING"], "flows/", FLOW)["name"] == FLOW["name"]


def test_another_site_or_host_name_is_refused_even_with_the_login(server_env: dict[str, str]) -> None:
    url = server_env["PREFECT_API_URL"]
    port = urlsplit(url).port
    for own in ("http://127.0.0.1", "http://localhost"):
        status, headers = ask(url, "/admin/version", with_login(server_env, Origin=f"{own}:{port}"), "GET")
        assert (status, headers["access-control-allow-origin"]) == (200, f"{own}:{port}")
    for foreign in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{port}"):
        for method, path in (("GET", "/admin/version"), ("OPTIONS", "/flows/"), ("POST", "/flows/")):
            status, headers = ask(url, path, with_login(server_env, Origin=foreign), method)
            assert status == 403 and "access-control-allow-origin" not in headers, (foreign, method)
    for host in ("evil.example", f"evil.example:{port}", ""):
        assert ask(url, "/admin/version", with_login(server_env, Host=host), "GET")[0] == 403, host
        assert ask(url.removesuffix("/api"), "/", {"Host": host}, "GET")[0] == 403, host
    socket = f"{url.replace('http', 'ws', 1)}/events/in"
    with pytest.raises(InvalidStatus) as refused:
        connect(socket, origin="http://evil.example", proxy=None)
    assert refused.value.response.status_code == 403


def test_a_port_may_differ_through_a_tunnel_and_a_second_host_is_refused() -> None:
    assert refusal_reason([(b"host", b"localhost:5000"), (b"origin", b"http://127.0.0.1:5000")]) == ""
    assert refusal_reason([(b"host", b"LOCALHOST")]) == ""
    assert refusal_reason([(b"host", b"127.0.0.1:4200"), (b"origin", b"http://127.0.0.1:5000")])
    assert refusal_reason([(b"host", b"127.0.0.1:4200"), (b"host", b"evil.example")])
    assert refusal_reason([(b"host", b"127.0.0.1.evil.example:4200")])
    assert refusal_reason([])


def test_the_login_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    home = tmp_path / ".prefect"
    found = flows_server.login(home)
    assert found == flows_server.login(home) and len(found) > 30
    assert [file.name for file in home.iterdir()] == ["login"]
    assert (home / "login").stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    assert found != flows_server.login(tmp_path / "other")
    (home / "login").chmod(0o644)
    with pytest.raises(PipelineError, match=r"other users can read this login\. Delete it"):
        flows_server.login(home)


@pytest.mark.slow
def test_a_wrong_login_is_one_line(bare: Project, server: str) -> None:
    ended = Project(bare.root, {**bare.env, "PREFECT_API_URL": server}).run("prepare")
    assert ended.code == 1
    assert f"error: PREFECT_API_AUTH_STRING: the server at {server} rejects the login. Set" in ended.err
    assert "Traceback" not in ended.err


@pytest.fixture
def other_site(tmp_path: Path) -> Iterator[str]:
    """An empty page of another origin."""
    (tmp_path / "index.html").write_text("<!doctype html><title>other</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}/index.html"
        site.shutdown()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.started(tmp_path_factory.mktemp("browser") / "profile") as port, browser.Page(port) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium")
def test_a_page_of_another_site_can_do_nothing_in_a_real_browser(
    page: browser.Page, server_env: dict[str, str], other_site: str
) -> None:
    url, login = server_env["PREFECT_API_URL"], server_env["PREFECT_API_AUTH_STRING"]
    name = "made-by-another-site"
    page.call("Page.navigate", url=other_site)
    page.wait("document.readyState === 'complete' && location.protocol === 'http:'")
    body = json.dumps({"name": name})
    ways = {
        "read": f"fetch('{url}/admin/version').then((r) => r.text())",
        "send": f"fetch('{url}/flows/', {{method: 'POST', mode: 'no-cors', body: '{body}'}}).then((r) => r.type)",
        "json": f"fetch('{url}/flows/', {{method: 'POST', body: '{body}', "
        "headers: {'Content-Type': 'application/json'}}).then((r) => r.text())",
        "socket": "new Promise((done) => { "
        f"const s = new WebSocket('{url.replace('http', 'ws', 1)}/events/in'); "
        "s.onopen = () => done('open'); s.onerror = () => done('refused'); })",
    }
    seen = {way: page.run(f"({script}).catch((e) => 'refused')") for way, script in ways.items()}
    assert seen == {"read": "refused", "send": "opaque", "json": "refused", "socket": "refused"}
    filters = {"flows": {"name": {"any_": [name]}}}
    assert call(url, login, "flows/filter", filters) == []


@pytest.mark.slow
@pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium")
def test_a_person_logs_in_on_prefects_own_page(page: browser.Page, server_env: dict[str, str]) -> None:
    url, login = server_env["PREFECT_API_URL"], server_env["PREFECT_API_AUTH_STRING"]
    call(url, login, "flows/", FLOW)
    page.call("Page.navigate", url=f"{url.removesuffix('/api')}/flows")
    page.wait("document.querySelector('input[type=password]') !== null")
    assert FLOW["name"] not in page.run("document.body.innerText")
    page.type("input[type=password]", login)
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.wait(f"document.body.innerText.includes('{FLOW['name']}')")
