"""`posttrain watch` in a real browser, while a real `dvc repro` trains and holds DVC's lock; and who may not see it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.pipeline.report import browser
from tests.pipeline.report.browser import Page
from tests.workspace import ROOT, environment

pytestmark = pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium")


@contextmanager
def watching(workspace: Path) -> Iterator[str]:
    """The address that `posttrain watch` prints; the server ends with the block."""
    command = [sys.executable, "-m", "posttrain", "watch"]
    env = environment() | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=workspace, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            found = re.fullmatch(r"open (http://127\.0\.0\.1:\d+/\?key=\S+)\n", server.stdout.readline())
            assert found
            yield found[1]
        finally:
            server.terminate()
    assert server.returncode == 0, "SIGTERM ends it like Ctrl-C"


def status(address: str, **headers: str) -> int:
    """The status of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def until(page: Page, expression: str, seconds: float = 900) -> None:
    """Wait until an expression is true; the page may load itself meanwhile."""
    deadline = time.monotonic() + seconds
    while not page.run(expression):
        assert time.monotonic() < deadline, f"never true: {expression}; {page.texts('#live div')}"
        time.sleep(0.2)


@pytest.mark.slow
def test_nobody_sees_the_page_without_its_key(finished: Path) -> None:
    shutil.copy(ROOT / "dvc.yaml", finished)
    with watching(finished) as address:
        root, _, key = address.partition("?key=")
        port = root.removesuffix("/").rpartition(":")[2]
        cookie = {"Cookie": f"posttrain-watch-{port}={key}"}
        assert [status(root), status(f"{root}state"), status(f"{root}?key=wrong")] == [401, 401, 401]
        assert status(root, Cookie=f"posttrain-watch-{port}=wrong") == 401
        assert status(f"{root}state", **cookie, Host=f"evil.example:{port}") == 401, "a name that was rebound to us"
        assert status(f"{root}state", **cookie) == 200
        assert b"posttrain-watch" not in urllib.request.urlopen(urllib.request.Request(root, headers=cookie)).read()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_follows_a_run(own_workspace: Path, tmp_path: Path) -> None:
    params = own_workspace / "params.yaml"
    longer = (
        params.read_text()
        .replace("kl: {beta: 0.02}", "kl: {beta: 0.05}\n      checkpoint_every: 10")
        .replace("rounds: 25", "rounds: 450")
    )
    params.write_text(longer)
    idle = "document.querySelector('#live')?.textContent === 'nothing runs'"
    running = r"/online@grpo: running, [\d,]+.900 steps/.test(document.querySelector('#live')?.textContent)"
    row = "document.querySelector('#results-table tr[data-policy=grpo]')?.textContent"
    curves = "[...document.querySelectorAll('#curves-chart path.curve')]"
    steps = f"Math.max(0, ...{curves}.map((one) => one.getAttribute('d').split('L').length))"
    samples = "document.getElementById('last-online@grpo')?.textContent"
    with watching(own_workspace) as address, browser.started(tmp_path / "profile") as port, Page(port) as page:
        page.visit(address)
        assert "key=" not in page.run("location.href"), "the key does not stay in the history"
        until(page, idle)
        repro = subprocess.Popen([sys.executable, "-m", "dvc", "repro"], cwd=own_workspace, env=environment())
        try:
            until(page, running, 200)
            until(page, f"{row}?.includes('online@grpo is running')", 60)
            page.choose("#metric", "entropy")
            before = page.run(steps)
            until(page, f"({steps}) > {before} && ({steps}) < 900", 60)
            until(page, f"{samples}?.length > 0", 60)
            assert repro.poll() is None, "DVC holds its lock all the time"
            assert page.run("document.getElementById('metric').value") == "entropy", "what was chosen is chosen again"
            texts = page.texts("[id='last-online@grpo'] :is(.asked, h3, .parts, pre)")
            assert re.search(r"\d.*\?", texts[0]) and re.fullmatch(r"reward [\d.]+", texts[1]), texts
            assert "correct" in texts[2] and re.search(r"\d+ tokens?$", texts[2]), texts
            assert repro.wait(timeout=600) == 0
        finally:
            repro.kill()
        until(page, idle, 60)
        until(page, f"{row}?.includes('running') === false && !{samples}", 60)
        assert page.complaints == []
        assert all(request.startswith(address.partition("?")[0]) for request in page.requests)
