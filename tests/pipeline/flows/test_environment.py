"""Which entries of `env` are taken. Prefect's own blocks and variables are read in test_deployed.py."""

from __future__ import annotations

import os

import pytest

from flows.environment import check, load
from posttrain.errors import ParamsError


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("JUDGE_KEY", "judge", "does not refer to a stored value"),
        ("JUDGE_KEY", "secret/", "does not refer to a stored value"),
        ("JUDGE_KEY", "vault/judge", "does not refer to a stored value"),
        ("A B", "variable/x", "does not refer to a stored value"),
        ("JUDGE", "secret/judge", "is not a name for a secret"),
    ],
)
def test_what_names_no_value_or_would_be_printed_is_refused(name: str, source: str, said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        check({name: source})


def test_names_that_logs_hide_are_taken_and_no_entries_change_nothing() -> None:
    check({"JUDGE_KEY": "secret/judge", "HF_TOKEN": "secret/a/b", "PLACE": "variable/models"})
    before = dict(os.environ)
    load({})
    assert os.environ == before
