"""A real browser without a window, driven over its own debugging protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADDRESS = re.compile(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/")
COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


def program() -> str | None:
    """The browser that is installed, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def started(profile: Path) -> Iterator[int]:
    """A browser with a profile of its own; gives the port of its debugger."""
    name = program()
    assert name, "no browser"
    flags = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
    ]
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium refuses to run as root with its sandbox
    command = [name, *flags, *root, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    log = profile.with_name("chromium.log")
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    try:
        yield _port(log, process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if found := ADDRESS.search(log.read_text(errors="replace")):
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"the browser did not start: {log.read_text(errors='replace')[-2000:]}")


class Page:
    """One open page: what it logs and asks of the network is kept."""

    def __init__(self, port: int) -> None:
        new = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(new) as answer:
            address = json.load(answer)["webSocketDebuggerUrl"]
        self._socket = connect(address, max_size=None, ping_interval=None)
        self._count = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call("Page.close")
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=300))
            if message.get("id") == self._count:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, file: Path, *, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Show a file and wait until its script has run."""
        self.visit(file.resolve().as_uri(), width=width, height=height, scheme=scheme)

    def visit(self, address: str, *, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Show an address and wait until its script has run."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + 120
        while not self.run(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.complaints}"
            time.sleep(0.03)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, scrolled to the middle of the window."""
        one = f"document.querySelector({json.dumps(selector)})"
        for _ in range(2):  # cards that come into sight are laid out in the next frame, which may move the element
            self.run(f"{one}.scrollIntoView({{block: 'center'}})")
            self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found = self.run(f"((box) => [box.left, box.top, box.width, box.height])({one}.getBoundingClientRect())")
        return found[0], found[1], found[2], found[3]

    def click(self, selector: str) -> None:
        """A real click into the middle of an element."""
        left, top, width, height = self.box(selector)
        self.drag((left + width / 2, top + height / 2), (left + width / 2, top + height / 2))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, name: str) -> None:
        """One key; a single character also types itself."""
        text = {"text": name} if len(name) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def type(self, selector: str, text: str) -> None:
        """Type into a field, as a person would."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option; headless chromium shows no list to click into."""
        change = "(one, value) => { one.value = value; one.dispatchEvent(new Event('input', {bubbles: true})); }"
        self.run(f"({change})(document.querySelector({json.dumps(selector)}), {json.dumps(value)})")

    def texts(self, selector: str) -> list[str]:
        """The text of every element that the selector finds."""
        found: list[str] = self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
        )
        return found

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") in COMPLAINTS:
            self.complaints.append(json.dumps(message["params"])[:600])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
