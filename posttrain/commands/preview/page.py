"""A preview as a page: one file without a script, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator, Sequence

from posttrain.tables.failures import printable

Part = tuple[str, Sequence[tuple[str, bool]]]
"""A part of a row: its name, and its text in pieces, each with whether it is trained."""
STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #626970; --line: #d8dce0; --paper: #fff; --own: #d3f0d8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --soft: #9aa2aa; --line: #3a4046; --paper: #16181a; --own: #1d4a2a; }
}
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 0.95rem; font-weight: 600; margin: 1.6rem 0 0.4rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
li { overflow-wrap: anywhere; }
pre + p { margin-top: 0.8rem; }
h2 + p, pre + p { margin-bottom: 0; color: var(--soft); }
pre { margin: 0.3rem 0; padding: 0.7rem 0.9rem; border: 1px solid var(--line); border-radius: 6px;
  font: 14px/1.55 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; color: var(--soft); }
mark { background: var(--own); color: var(--ink); }
i { font-style: normal; opacity: 0.45; user-select: none; }
"""


def page(title: str, facts: Sequence[str], rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """Return the facts as a list, then each row under its title; trained text is marked, line breaks are shown."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-{digest}'"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{html.escape(title)}</h1><ul>",
            *(f"<li>{html.escape(fact)}</li>" for fact in facts),
            "</ul><p><mark>Marked</mark> tokens are trained; the rest is context.</p>",
            *_rows(rows),
            "</body></html>\n",
        ]
    )


def _rows(rows: Sequence[tuple[str, Sequence[Part]]]) -> Iterator[str]:
    for title, parts in rows:
        yield f"<h2>{html.escape(title)}</h2>"
        for name, stretches in parts:
            if len(parts) > 1:
                yield f"<p>{html.escape(name)}</p>"
            yield f"<pre>{''.join(_stretch(text, trained) for text, trained in stretches)}</pre>"


def _stretch(text: str, trained: bool) -> str:  # noqa: FBT001
    shown = "<i>↵</i>\n".join(html.escape(printable(line)) for line in text.split("\n"))
    return f"<mark>{shown}</mark>" if trained else shown
