"""The counts of docs/reports/structure.md: none may rise; lower a number here when it has fallen."""

from __future__ import annotations

from docs.make import api_pipeline
from docs.make.structure import PAGE, ROOT, counts, page

API = ROOT / "docs/reference/api.md"

MOST = {
    "names that the library imports from the pipeline": 0,
    "files of the library that import them": 0,
    "texts of the library that name a command, dvc or params.yaml": 0,
    'strings like "stages.sft:SftRun" in posttrain/': 0,
    "names that stages/ imports and the API page lacks": 39,
    "of these, names that docs/reference/api-pipeline.md lacks": 0,
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


def test_the_api_is_small() -> None:
    names = [line for line in API.read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    assert len(names) <= 80


def test_the_page_of_the_names_of_stages_is_current() -> None:
    assert api_pipeline.PAGE.read_text(encoding="utf-8") == api_pipeline.page(), "run python -m docs.make.api_pipeline"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.make.structure"
