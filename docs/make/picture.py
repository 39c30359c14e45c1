"""The picture in the README: the table and one card of the report's page; `python -m docs.make.readme` draws it.

`python -m docs.make.picture PAGE FILE` draws another page.
"""

from __future__ import annotations

import base64
import re
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from posttrain.errors import DataError
from posttrain.files import atomic_path
from tests.pipeline.report.browser import NAMES, Page, program, started

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


NOTE = b"summary"
"""The text of the picture's file that says of which results it is."""
_HEAD = 33
"""Bytes of a PNG before its second part: the signature and the part IHDR."""


def draw(page: Path, file: Path, digest: str) -> None:
    """Write the picture of a page, with the digest of its results."""
    if program() is None:
        raise DataError(what="no browser", where=str(file), fix=f"Install one of: {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "profile") as port, Page(port) as shown:
        shown.open(page, width=WIDTH, height=900)
        height = shown.run(ONLY)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        data = shown.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        write_bytes(file, noted(base64.b64decode(data), digest))


def noted(png: bytes, digest: str) -> bytes:
    """Return a PNG with the digest of its results as a part tEXt."""
    part = b"tEXt" + NOTE + b"\0" + digest.encode()
    added = struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    return png[:_HEAD] + added + png[_HEAD:]


def digest_of(png: bytes) -> str:
    """Return the digest of the results that a picture was drawn of; empty where it has none."""
    found = re.search(rb"(....)tEXt" + NOTE + rb"\0", png[_HEAD : _HEAD + 100], re.DOTALL)
    if found is None:
        return ""
    (length,) = struct.unpack(">I", found[1])  # a checksum follows, whose bytes may be letters
    begin = _HEAD + found.end()
    return png[begin : begin + length - len(NOTE) - 1].decode()


def write_bytes(file: Path, data: bytes) -> None:
    """Write a file, completely or not at all."""
    with atomic_path(file) as temporary:
        temporary.write_bytes(data)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), "")
