"""A preview as a page: one file without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posttrain.data.shown import printable
from posttrain.pipeline.report.markup import Markup, element, escaped, listed
from posttrain.pipeline.report.page import plain_page

Part = tuple[str, Sequence[tuple[str, bool]]]
"""A part of a row: its name, and pieces of text, each with a flag whether it is trained."""


def page(title: str, facts: Sequence[str], rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """Return the facts as a list, then each row under its title. Trained text is marked; line breaks are visible."""
    legend = element("p", element("mark", "Marked"), " tokens are trained; the rest is context.")
    shown = [part for row in rows for part in _row(*row)]
    return plain_page(title, element("main", element("h1", title), listed(facts), legend, *shown, class_="preview"))


def _row(title: str, parts: Sequence[Part]) -> Iterator[Markup]:
    yield element("h2", title)
    for name, stretches in parts:
        if len(parts) > 1:
            yield element("p", name)
        yield element("pre", *(_stretch(text, trained) for text, trained in stretches))


def _stretch(text: str, trained: bool) -> Markup:  # noqa: FBT001
    shown = Markup(f"{element('i', '↵')}\n".join(escaped(printable(line)) for line in text.split("\n")))
    return element("mark", shown) if trained else shown
