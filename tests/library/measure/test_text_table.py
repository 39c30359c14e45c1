"""Tables of text, aligned and cut to the terminal."""

from __future__ import annotations

import pytest

from posttrain.measure.text_table import FoldedHelp, folded, terminal_width, text_table

ROWS = [["run", "score", "a long title"], ["sft", "0.5", "x"], ["dpo", "0.75", "yy"]]


def test_columns_are_aligned_and_ruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert text_table(ROWS, ruled=True, left=(0, 2)) == [
        "run  score  a long title",
        "------------------------",
        "sft    0.5  x",
        "dpo   0.75  yy",
    ]
    assert text_table([]) == []


def test_what_does_not_fit_the_terminal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert text_table(ROWS)[:2] == ["run  score", "sft    0.5"]
    assert text_table(ROWS)[-1] == "not shown: a long title (a wider terminal, or --json)"


def test_long_lines_are_folded_below_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert terminal_width() == 20 and folded("short") == "short"
    assert folded("a  one two three four five") == "a  one two three\n   four five"
    assert folded("given a|b|c|d|e|f|g|h|i") == "given a|b|c|d|e|f|g|\nh|i"
    coloured = "\x1b[1m" + "a " * 20
    assert folded(coloured) == coloured
    help_text = FoldedHelp("prog")._fill_text("a  one two three four five\nb", 99, "   ")
    assert help_text == "a  one two three\n   four five\nb"
