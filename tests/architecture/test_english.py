"""Two rules of plain English hold for every text that users read; the others are only hints."""

from __future__ import annotations

import pytest

from docs.make.english import GATES, HINTS, hits
from docs.make.texts import Text, of_code, sentences, texts

NO, ZERO, COMMAS = GATES


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("'nope' is no stage that trains", [NO]),
        ("There is no stage of this name, and it is no longer a metric", []),
        ("Base .15; SFT 0.00-0.10", [ZERO]),
        ("It keeps 0.15 and `.15` and `a is no b`", []),
        ("It read 24705 rows", [COMMAS]),
        ("It read 24,705 rows at http://127.0.0.1:43120/api", []),
    ],
)
def test_the_gates(text: str, rules: list[str]) -> None:
    assert [rule for rule, _ in hits([Text("page", "a.md", 1, text)], GATES)] == rules


def test_no_text_breaks_a_gate() -> None:
    found = [f"{text.file}:{text.line}: {rule}: {text.text}" for rule, text in hits(texts(), GATES)]
    assert found == [], "`python -m docs.make.english --hints` prints hints for the other rules too"


def test_hints_are_patterns_of_the_other_rules() -> None:
    said = Text("docstring", "a.py", 1, "Return what is refused of those of the program")
    assert len([*hits([said], HINTS)]) >= 2 and not {*HINTS} & {*GATES}


def test_sentences_of_a_page() -> None:
    page = (
        "# No heading\n\nOne two three four. Five six\nseven eight!\n\n```sh\nno code at all here\n```\n"
        "| a b c d | [the link text here](x.md) |\n|---|---|\n- An item of a list.\n"
    )
    assert [(text.line, text.text) for text in sentences(page, "a.md")] == [
        (3, "One two three four."),
        (3, "Five six seven eight!"),
        (9, "a b c d"),
        (9, "the link text here"),
        (11, "An item of a list."),
    ]


CODE = '''
"""The docstring of the module."""
def public():
    """Say what is wrong here.

    No second part.
    """
    what = f"row {row} has no text"
    raise DataError(what="it is not a table", where="x", fix=f"Write a table to {path}")
def _private():
    """Not read by any user."""
    Field(description="the help of a setting")
    parser.add_argument("--a", help="too short")
'''


def test_texts_of_code() -> None:
    assert {(text.kind, text.text) for text in of_code(CODE, "a.py")} == {
        ("docstring", "The docstring of the module."),
        ("docstring", "Say what is wrong here."),
        ("error", "row X has no text"),
        ("error", "it is not a table"),
        ("error", "Write a table to X"),
        ("help", "the help of a setting"),
    }
