"""What a call is given is checked, with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.api.argument_checks import model_folder, refuse_no_rows, rename_hint
from posttrain.errors import DataError, ModelError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text", "this is one string, not rows"),
        ({"train": []}, "these are several splits"),
        ({"prompt": "a"}, "this is one row, not a list of rows"),
        (pl.DataFrame({"a": [1]}), "this is a polars table"),
        (iter([1]), "this is of the type list_iterator"),
        (None, "this is None, not a list of rows"),
        ([], "there are no rows"),
    ],
)
def test_what_is_no_list_of_rows(given: Any, message: str) -> None:
    refuse_no_rows([1], "rows")
    with pytest.raises(DataError, match=message):
        refuse_no_rows(given, "rows")


def test_columns_by_other_names() -> None:
    assert (
        rename_hint({"question": "a", "response": "b"}, "chat")
        == "Rename 'question' to 'prompt'. Rename 'response' to 'completion'. "
    )
    assert rename_hint({"prompt": "a", "chosen": "b", "rejectd": "c"}, "pairs") == "Rename 'rejectd' to 'rejected'. "
    assert rename_hint({"x": "a"}, "chat") == "" and rename_hint({"prompt": "a", "completion": "b"}, "chat") == ""


def test_model_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert model_folder(str(tmp_path), "model") == tmp_path
    for given, message in [
        (None, "it is None, not a folder"),
        (3, "it is of the type int"),
        (tmp_path / "file", "this is a file"),
        (tmp_path / "none", "the folder does not exist"),
    ]:
        with pytest.raises(ModelError, match=message):
            model_folder(given, "model")
    with pytest.raises(ModelError, match=r'snapshot_download\("org/name"\)'):
        model_folder("org/name", "model")
