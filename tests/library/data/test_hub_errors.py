"""Errors of the Hub in one line with a fix."""

from __future__ import annotations

import pytest

from posttrain.data.hub_errors import hub_error, page, unreachable
from posttrain.errors import DataError, ModelError


def test_page() -> None:
    assert page("dataset", "a/b").endswith("/datasets/a/b") and page("model", "a/b").endswith("/a/b")
    assert "datasets" not in page("model", "a/b")


def test_unreachable() -> None:
    inner = ConnectionError("no")
    outer = ValueError("wrapped")
    outer.__cause__ = inner
    assert unreachable(inner) and unreachable(outer) and not unreachable(ValueError("no"))


def test_hub_error() -> None:
    found = hub_error(ValueError("bad\nline"), "dataset", "a/b", "abc", "here")
    assert isinstance(found, DataError) and found.where == "here"
    assert found.what == "the data set 'a/b' cannot be loaded (bad)"
    model = hub_error(ConnectionError("no"), "model", "a/b", "0123456789", "here")
    assert isinstance(model, ModelError) and "and commit 0123456 of the model 'a/b' is not in the cache" in model.what


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("GatedRepoError", "the model 'a/b' is gated"),
        ("RevisionNotFoundError", "the model 'a/b' has no commit abc"),
        ("RepositoryNotFoundError", "the model 'a/b' is not found, or is private"),
        ("DisabledRepoError", "the Hub has disabled the model 'a/b'"),
    ],
)
def test_refusals_of_the_hub(kind: str, what: str) -> None:
    from huggingface_hub import errors

    error = getattr(errors, kind).__new__(getattr(errors, kind))
    response = type("Response", (), {"status_code": 404})()
    error.response = response
    assert hub_error(error, "model", "a/b", "abc", "here").what == what
