"""The counts of docs/reports/structure.md: none may rise; lower a number here when it has fallen."""

from __future__ import annotations

from docs.make.structure import PAGE, ROOT, counts, page

MOST = {
    "names that the library imports from the pipeline": 0,
    "files of the library that import them": 0,
    "texts of the library that name a command, dvc or params.yaml": 0,
    'strings like "stages.sft:SftRun" in posttrain/': 0,
    "names that stages/ imports and the API page lacks": 191,
}


SKIPPED = 3
"""Lines of tests/library/skipped.txt: tests that the library alone skips."""


def test_the_list_of_skipped_tests_does_not_grow() -> None:
    text = (ROOT / "tests/library/skipped.txt").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= SKIPPED


def test_no_count_rises() -> None:
    found = counts()
    assert found.keys() == MOST.keys()
    assert {name: count for name, count in found.items() if count > MOST[name]} == {}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.make.structure"
