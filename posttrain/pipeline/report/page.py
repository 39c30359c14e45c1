"""Build the report's page: one file that does not use the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.pipeline.report.markup import Markup, escaped

ASSETS = Path(__file__).parent
SCRIPTS = (
    "elements.js",
    "chart.js",
    "draw.js",
    "results.js",
    "curves.js",
    "watched.js",
    "samples.js",
    "start.js",
)


def page(data: Mapping[str, Any], title: str, written: Mapping[str, Markup], *, live: Sequence[str] = ()) -> str:
    """Return the page with style, script and data inside. Its content security policy allows only these.

    `written`: the parts that need no script; `last`, the newest samples of active runs, may be missing. `live`:
    scripts of a page that polls its server.
    """
    scripts = "\n".join(map(asset, (*SCRIPTS, *live)))
    style, script = asset("page.css"), f'"use strict";\n(() => {{\n{scripts}}})();\n'
    asks = "; connect-src 'self'" if live else ""
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'{asks}"
    parts = {
        "policy": f"default-src 'none'; base-uri 'none'; form-action 'none'; {sources}",
        "title": escaped(title),
        "style": style,
        "data": embedded(data),
        "script": script,
        "last": Markup(),
        **written,
    }
    text = asset("page.html")
    pieces = text.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # not by replace(): a completion may hold the next placeholder
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def plain_page(title: str, body: Markup, script: str = "") -> str:
    """Return a page of text and tables in the same style. `script`: an optional file that adds interactivity."""
    style = asset("page.css")
    code = f'"use strict";\n(() => {{\n{asset(script)}}})();\n' if script else ""
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src '{_hash(style)}'"
    policy += f"; script-src '{_hash(code)}'" if code else ""
    run = f"\n<script>{code}</script>" if code else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}{run}
</body>
</html>
"""


def embedded(data: Any) -> str:
    """Return JSON that is safe between <script> tags: it cannot end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return a file of the page from this folder."""
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
