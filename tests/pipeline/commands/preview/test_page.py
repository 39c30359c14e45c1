"""A preview as a page."""

from __future__ import annotations

from posttrain.pipeline.commands.preview.page import _row, _stretch, page


def test_trained_text_is_marked() -> None:
    assert str(_stretch("a<b\nc", True)) == "<mark>a&lt;b<i>↵</i>\nc</mark>"
    assert str(_stretch("a", False)) == "a"
    assert [str(one) for one in _row("row 1", [("text", [("a", False), ("b", True)])])] == [
        "<h2>row 1</h2>", "<pre>a<mark>b</mark></pre>",
    ]  # fmt: skip
    assert [str(one) for one in _row("row 1", [("chosen", []), ("rejected", [])])][1] == "<p>chosen</p>"


def test_the_page_is_one_file_without_scripts() -> None:
    shown = page("mine/chat", ["4 rows"], [("row 1", [("text", [("a", True)])])])
    assert shown.lower().startswith("<!doctype html>") and shown.rstrip().endswith("</html>")
    assert "4 rows" in shown and "<mark>a</mark>" in shown and "<script" not in shown
