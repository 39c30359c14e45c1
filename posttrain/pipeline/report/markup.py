"""Write the page's tables as HTML, so that they work without its script and in print."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.measure.terminal import visible

NOT_MEASURED = "not measured"
"""The text of a cell without a measurement."""
UNREAD = "no readable answer"
"""The note next to a score if no answer could be read."""


class Markup(str):
    """A text that is already HTML."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, and the CSS classes of its cells."""

    title: str
    kind: str = ""


def escaped(text: object) -> Markup:
    """Return a text escaped for HTML. Characters that reverse the text direction become visible codes."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(str(text))))


def element(name: str, *inside: object, **attributes: str | None) -> Markup:
    """Return an element. `_` in an attribute name becomes `-`; attributes that are None are left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"' for key, value in attributes.items() if value
    )
    return Markup(f"<{name}{given}>{''.join(map(escaped, inside))}</{name}>")


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[object]], *, stacks: bool = True) -> Markup:
    """Return a table in its own scroll box. If it `stacks`, narrow screens show each row as a card.

    The roles keep the table's structure for screen readers, which would lose it with the cards' display.
    """
    titles = [element("th", one.title, scope="col", role="columnheader", class_=one.kind) for one in columns]
    head = element("thead", element("tr", *titles, role="row"), role="rowgroup")
    lines = [
        element(
            "tr",
            element("th", row[0], scope="row", role="rowheader"),
            *(
                element("td", cell, role="cell", class_=column.kind, data_title=column.title)
                for cell, column in zip(row[1:], columns[1:], strict=True)
            ),
            role="row",
        )
        for row in rows
    ]
    body = element("tbody", *lines, role="rowgroup")
    inside = element("table", element("caption", caption, class_="hidden"), head, body, role="table")
    box = "scroll stacks" if stacks else "scroll"
    return element("div", inside, class_=box, tabindex="0", role="region", aria_label=caption)


def figures(pairs: Mapping[str, object]) -> Markup:
    """Return names with values as a wrapping list."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs.items())
    return element("dl", *rows, class_="figures")


def folded(summary: str, inside: Markup) -> Markup:
    """Return a collapsible part that is initially closed."""
    return element("details", element("summary", summary), inside)


def listed(lines: Sequence[object]) -> Markup:
    """Return a list."""
    return element("ul", *(element("li", line) for line in lines))
