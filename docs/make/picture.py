"""The picture in the README: `python -m docs.make.picture [PAGE]` draws the table and one card of the report's page."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from posttrain.report.build import PAGE
from tests.report.browser import Page, started

FILE = Path("docs/reports/page.png")
WIDTH = 1240
LEFT_OUT = (
    "header, .skip, main > :not(#results, #completions), #gain, #rewards, .controls, #completions .scroll, "
    "#found, #more, .note, #prompts > li:nth-child(n + 2)"
)
ONLY = f"""(() => {{
  const kind = document.getElementById('kind'), main = document.querySelector('main');
  kind.value = 'no readable answer';
  kind.dispatchEvent(new Event('input', {{ bubbles: true }}));
  document.querySelectorAll('{LEFT_OUT}').forEach((one) => one.remove());
  for (const one of document.querySelectorAll('section')) Object.assign(one.style, {{ padding: '.6rem 0', margin: 0 }});
  main.style.padding = '0 1.25rem .5rem';
  return main.getBoundingClientRect().bottom;
}})()"""
"""Leaves the table and a card, and returns the height of both."""


def main() -> None:
    """Write the picture."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "profile") as port, Page(port) as shown:
        shown.open(page, width=WIDTH, height=900)
        height = shown.run(ONLY)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        data = shown.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        FILE.write_bytes(base64.b64decode(data))
    print(f"{FILE}: {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
