"""Questions that people ask, typed into the search of the site that `make docs` builds, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.pipeline.report import browser
from tests.pipeline.report.browser import Page
from tests.workspace import ROOT

SITE = ROOT / ".site"
FOUND = "[...document.querySelectorAll('.md-search-result__item > a')].map((one) => one.getAttribute('href'))"
ANSWERS = {
    "LoRA jsonl two learning rates": "first-lora/",
    "reward is always 0": "troubleshooting/#the-reward-is-always-0",
    "8 GPUs": "troubleshooting/#one-run-on-8-gpus-or-8-runs",
    "vLLM": "sampling/#vllm",
    "push to the Hub": "troubleshooting/#push-a-model-to-the-hub-or-serve-it-elsewhere",
    "serve elsewhere": "troubleshooting/#push-a-model-to-the-hub-or-serve-it-elsewhere",
    "kl_k3": "reference/metrics/",
}
"""What is typed, and the page, or its part, that answers it: among the first three that the search shows."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.program() is None, reason="needs a browser: apt-get install chromium"),
    pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site, and a folder for the browser."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", tmp_path_factory.mktemp("browser") / "profile"
        server.shutdown()


def test_the_search_answers_what_people_ask(site: tuple[str, Path]) -> None:
    address, profile = site
    with browser.started(profile) as port, Page(port) as page:
        for question, answer in ANSWERS.items():
            page.call("Page.navigate", url=f"{address}?q={quote(question)}")
            page.wait(f"({FOUND}).length > 0")
            found = [one.split("?")[0] + "#" * ("#" in one) + one.partition("#")[2] for one in page.run(FOUND)]
            assert any(one.endswith(answer) for one in found[:3]), f"{question}: {found[:6]}"
