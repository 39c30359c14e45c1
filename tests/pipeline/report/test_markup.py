"""Tables and lists of the page as HTML."""

from __future__ import annotations

from posttrain.pipeline.report.markup import Column, Markup, element, escaped, figures, folded, listed, table


def test_escaped() -> None:
    assert escaped('<a> & "b"') == "&lt;a&gt; &amp; &quot;b&quot;"
    ready = Markup("<b>")
    assert escaped(ready) is ready


def test_element() -> None:
    assert element("td", "<", class_="a", data_title="b", id=None) == '<td class="a" data-title="b">&lt;</td>'


def test_figures_lists_and_folds() -> None:
    assert figures({"a": 1}) == '<dl class="figures"><div><dt>a</dt><dd>1</dd></div></dl>'
    assert listed(["a", "<"]) == "<ul><li>a</li><li>&lt;</li></ul>"
    assert folded("s", Markup("<p>")) == "<details><summary>s</summary><p></details>"


def test_table() -> None:
    found = table("T", [Column("a"), Column("b", "left")], [["x", "y"]])
    assert found.startswith('<div class="scroll stacks" tabindex="0" role="region" aria-label="T"><table role="table">')
    assert '<th scope="col" role="columnheader" class="left">b</th>' in found
    assert '<th scope="row" role="rowheader">x</th><td role="cell" class="left" data-title="b">y</td>' in found
    assert table("T", [Column("a")], [], stacks=False).startswith('<div class="scroll" ')
